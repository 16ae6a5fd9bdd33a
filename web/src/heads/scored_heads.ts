/** Heads with their labels and scores: their names, their order, and those that are silenced. */

import { title } from "../paint/token_text";
import { headName, type LayerScores, type Meta } from "../server/protocol";
import type { HeadPlace } from "../state";

export interface Head {
  readonly place: HeadPlace;
  readonly name: string;
  readonly labels: readonly string[];
  readonly scores: Readonly<Record<string, number>>;
}

export function nameOf(meta: Meta, [layer, head]: HeadPlace): string {
  return headName(meta, layer, head);
}

export function headsOf(meta: Meta, layer: number, { heads }: LayerScores): Head[] {
  return heads.map(({ labels, scores }, head) => ({
    place: [layer, head],
    name: nameOf(meta, [layer, head]),
    labels: labels.map((label) => title(label)),
    scores,
  }));
}

/** By a score, "-" from large to small, or by layer and head; those without the score come last either way. */
export function ordered(heads: readonly Head[], order: string): Head[] {
  const falling = order.startsWith("-");
  const name = falling ? order.slice(1) : order;
  const value = ({ scores }: Head): number => (falling ? -1 : 1) * (scores[name] ?? NaN);
  return [...heads].sort((one, other) => {
    const [first, second] = [value(one), value(other)];
    const unknown = Number(Number.isNaN(first)) - Number(Number.isNaN(second));
    return unknown || first - second || byPlace(one.place, other.place);
  });
}

function byPlace(one: HeadPlace, other: HeadPlace): number {
  return one[0] - other[0] || one[1] - other[1];
}

/** What a click on a column makes of the order: from large to small, then from small to large, then none. */
export function nextOrder(order: string, name: string): string {
  return order === `-${name}` ? name : order === name ? "" : `-${name}`;
}

/** The scores that some head has, in the order in which they are told. */
export function scoreNames(heads: readonly Head[]): string[] {
  return [...new Set(heads.flatMap(({ scores }) => Object.keys(scores)))];
}

/** A score as people read it. */
export function spaced(name: string): string {
  return title(name.replaceAll("_", " "));
}

/** How many heads have each label, the commonest first. */
export function labelCounts(heads: readonly Head[]): [label: string, count: number][] {
  const counts = new Map<string, number>();
  for (const { labels } of heads) for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

export function samePlace(one: HeadPlace | null, other: HeadPlace | null): boolean {
  return one?.[0] === other?.[0] && one?.[1] === other?.[1];
}

export function isAmong(places: readonly HeadPlace[], place: HeadPlace): boolean {
  return places.some((one) => samePlace(one, place));
}

/** The heads with this one among them, or not among them any more. */
export function toggled(places: readonly HeadPlace[], place: HeadPlace): readonly HeadPlace[] {
  return isAmong(places, place)
    ? places.filter((one) => !samePlace(one, place))
    : [...places, place].sort(byPlace);
}
