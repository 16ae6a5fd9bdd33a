/** Heads with labels and scores: their names and order, and lists of heads. */

import { formatTitle } from "../paint/token_text";
import { parseFilter } from "../questions/parse_question";
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

/** Sort by a score ("-" for descending), or by layer and head; heads without the score come last either way. */
export function sortHeads(heads: readonly ScoredHead[], order: string): ScoredHead[] {
  const isDescending = order.startsWith("-");
  const name = isDescending ? order.slice(1) : order;
  const getSortValue = ({ scores }: ScoredHead): number => (isDescending ? -1 : 1) * (scores[name] ?? NaN);
  return [...heads].sort((one, other) => {
    const [first, second] = [getSortValue(one), getSortValue(other)];
    const unknown = Number(Number.isNaN(first)) - Number(Number.isNaN(second));
    return unknown || first - second || compareHeads(one.id, other.id);
  });
}

/** Whether a head has a label and fulfils a condition; "" asks for nothing, and a head that is not scored passes only that. */
export function passesFilters(head: Pick<ScoredHead, "labels" | "scores"> | undefined, label: string, filter: string): boolean {
  const condition = parseFilter(filter);
  if (label !== "" && !head?.labels.includes(label)) return false;
  return !condition || condition.test(head?.scores[condition.name] ?? NaN);
}

function compareHeads(one: HeadId, other: HeadId): number {
  return one[0] - other[0] || one[1] - other[1];
}

/** The order after a click on a column: descending, then ascending, then none. */
export function getNextOrder(order: string, name: string): string {
  return order === `-${name}` ? name : order === name ? "" : `-${name}`;
}

/** The names of all scores, in the order of the server. */
export function listScoreNames(heads: readonly ScoredHead[]): string[] {
  return [...new Set(heads.flatMap(({ scores }) => Object.keys(scores)))];
}

/** The name of a score for the reader. */
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

/** Add a head to the list, or remove it. */
export function toggleHead(ids: readonly HeadId[], id: HeadId): readonly HeadId[] {
  return includesHead(ids, id)
    ? ids.filter((one) => !isSameHead(one, id))
    : [...ids, id].sort(compareHeads);
}
