/** Heads with their labels and scores: their names, their order, and those that are silenced. */

import { formatTitle } from "../paint/token_text";
import { formatHeadName, type LayerScores, type Meta } from "../server/protocol";
import type { HeadId } from "../state";

export interface ScoredHead {
  readonly id: HeadId;
  readonly name: string;
  readonly labels: readonly string[];
  readonly scores: Readonly<Record<string, number>>;
}

export function getHeadName(meta: Meta, [layer, head]: HeadId): string {
  return formatHeadName(meta, layer, head);
}

export function toScoredHeads(meta: Meta, layer: number, { heads }: LayerScores): ScoredHead[] {
  return heads.map(({ labels, scores }, head) => ({
    id: [layer, head],
    name: getHeadName(meta, [layer, head]),
    labels: labels.map((label) => formatTitle(label)),
    scores,
  }));
}

/** By a score, "-" from large to small, or by layer and head; those without the score come last either way. */
export function sortHeads(heads: readonly ScoredHead[], order: string): ScoredHead[] {
  const falling = order.startsWith("-");
  const name = falling ? order.slice(1) : order;
  const value = ({ scores }: ScoredHead): number => (falling ? -1 : 1) * (scores[name] ?? NaN);
  return [...heads].sort((one, other) => {
    const [first, second] = [value(one), value(other)];
    const unknown = Number(Number.isNaN(first)) - Number(Number.isNaN(second));
    return unknown || first - second || compareHeads(one.id, other.id);
  });
}

function compareHeads(one: HeadId, other: HeadId): number {
  return one[0] - other[0] || one[1] - other[1];
}

/** What a click on a column makes of the order: from large to small, then from small to large, then none. */
export function getNextOrder(order: string, name: string): string {
  return order === `-${name}` ? name : order === name ? "" : `-${name}`;
}

/** The scores that some head has, in the order in which they are told. */
export function listScoreNames(heads: readonly ScoredHead[]): string[] {
  return [...new Set(heads.flatMap(({ scores }) => Object.keys(scores)))];
}

/** A score as people read it. */
export function formatScoreName(name: string): string {
  return formatTitle(name.replaceAll("_", " "));
}

/** How many heads have each label, the commonest first. */
export function countLabels(heads: readonly ScoredHead[]): [label: string, count: number][] {
  const counts = new Map<string, number>();
  for (const { labels } of heads) for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

export function isSameHead(one: HeadId | null, other: HeadId | null): boolean {
  return one?.[0] === other?.[0] && one?.[1] === other?.[1];
}

export function includesHead(ids: readonly HeadId[], id: HeadId): boolean {
  return ids.some((one) => isSameHead(one, id));
}

/** The heads with this one among them, or not among them any more. */
export function toggleHead(ids: readonly HeadId[], id: HeadId): readonly HeadId[] {
  return includesHead(ids, id)
    ? ids.filter((one) => !isSameHead(one, id))
    : [...ids, id].sort(compareHeads);
}
