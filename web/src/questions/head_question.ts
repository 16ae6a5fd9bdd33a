/** The question that the navigator answers for all heads. */

import { parseFilter, type Positions } from "./parse_question";
import type { Layer } from "../server/protocol";
import type { ComparedHead, State } from "../state";

/** Pinned tokens: at least one side is not null. */
export interface Link {
  readonly query: Positions | null;
  readonly key: Positions | null;
}

export type HeadQuestion =
  | { readonly kind: "label" }
  | { readonly kind: "score"; readonly score: string; readonly rises: boolean }
  | { readonly kind: "link"; readonly link: Link }
  | { readonly kind: "ablation"; readonly method: State["ablationMethod"] }
  /** How much more than B: than the same head of another trace, or than that head of this trace. */
  | { readonly kind: "difference"; readonly link: Link; readonly other: ComparedHead };

/** The pinned tokens; null where nothing is pinned. */
export function getPinnedLink({ pinQuery, pinQueryEnd, pinKey, pinKeyEnd, region }: State): Link | null {
  const query = pinQuery === null ? null : { first: pinQuery, last: pinQueryEnd ?? pinQuery };
  const key = region !== "" ? parseRegion(region) : pinKey === null ? null : { first: pinKey, last: pinKeyEnd ?? pinKey };
  return query || key ? { query, key } : null;
}

/** The positions from the first to the last of a region, which holds some of them. */
function parseRegion(region: string): Positions {
  const ends = region.split(/[-,]/).map(Number);
  return { first: ends[0] ?? 0, last: (ends.at(-1) ?? 1) - 1, runs: region };
}

/** How many positions are meant. */
export function countPositions({ first, last, runs }: Positions): number {
  if (runs === undefined) return last - first + 1;
  return runs.split(",").reduce((sum, run) => sum - run.split("-").map(Number).reduce((start, stop) => start - stop), 0);
}

/** The same link without a region, for what knows only single tokens and spans. */
export function withoutRegion(link: Link | null): Link | null {
  if (link?.key?.runs === undefined) return link;
  return link.query && { query: link.query, key: null };
}

/** A question that cannot be answered now becomes the automatic one. */
export function getQuestion(state: State): HeadQuestion {
  const link = getPinnedLink(state);
  const { question, compare, ablationMethod } = state;
  if (question === "ablation") return { kind: "ablation", method: ablationMethod };
  if (link && question === "difference" && compare) return { kind: "difference", link, other: compare };
  if (link && question !== "label") return { kind: "link", link };
  const filter = parseFilter(state.filter);
  return filter ? { kind: "score", score: filter.name, rises: filter.rises } : { kind: "label" };
}

/** Half-open, as requests have it. */
export function toRange(positions: Positions | null): readonly [number, number] | null {
  return positions && [positions.first, positions.last + 1];
}

/** Whether the causal mask leaves nothing of a link. */
export function isMasked({ query, key }: Link, { causal, offset }: Pick<Layer, "causal" | "offset">): boolean {
  return causal && query !== null && key !== null && key.first > query.last + offset;
}
