/** Pinned spans of tokens: the end of each pin, inclusive. */

import type { State } from "./state";

type Spans = Partial<Record<"pinQueryEnd" | "pinKeyEnd", number | null>>;

/** The pinned tokens; an end is the token itself where one token is pinned. */
export function getPinnedSpans(state: State): {
  readonly query: number | null;
  readonly queryEnd: number | null;
  readonly key: number | null;
  readonly keyEnd: number | null;
} {
  const { pinQueryEnd, pinKeyEnd } = state as State & Spans;
  const { pinQuery: query, pinKey: key } = state;
  return { query, queryEnd: pinQueryEnd ?? query, key, keyEnd: pinKeyEnd ?? key };
}

/** Pin keys `first` to `last`, in any order. */
export function createKeySpan(first: number, last: number): Partial<State> {
  const [start, end] = first <= last ? [first, last] : [last, first];
  const change: Partial<State> & Spans = { pinKey: start, pinKeyEnd: end === start ? null : end };
  return change;
}
