/** Pairs the tokens of two heads, queries and keys, and describes the result. */

import { alignByPosition, createAlignment, findCommonRuns, MAX_TOKENS, type Alignment } from "./alignment";
import type { Cell } from "../map/map_view";
import { formatCount } from "../format_numbers";
import type { Side, TraceHead } from "../server/protocol";
import type { TraceCache } from "../server/trace_cache";
import type { State } from "../state";

export interface TokenPairing extends Readonly<Record<Side, Alignment>> {
  /** Identifies the two heads. */
  readonly name: string;
  readonly message: string;
  /** Texts are still loading; paired by position meanwhile. */
  readonly isLoading: boolean;
}

/** Returns `before` if it is complete and of the same two heads. */
export function pairTokens(traces: TraceCache, one: TraceHead, other: TraceHead, beside: boolean, before: TokenPairing | null): TokenPairing {
  const name = [one.meta.trace, one.layer, other.meta.trace, other.layer, beside].join();
  if (before?.name === name && !before.isLoading) return before;
  const [here, there] = [one.meta.layers[one.layer], other.meta.layers[other.layer]];
  const lengths = { query: [here?.queries ?? 0, there?.queries ?? 0], key: [here?.keys ?? 0, there?.keys ?? 0] } as const;
  const createPairing = (message: string, query: Alignment, key: Alignment, isLoading = false): TokenPairing => ({ name, message, query, key, isLoading });
  const pairByPosition = (words: string, reading = false): TokenPairing =>
    createPairing(words, alignByPosition(...lengths.query), alignByPosition(...lengths.key), reading);
  const same = one.meta.trace === other.meta.trace && Object.values(lengths).every(([long, wide]) => long === wide);
  if (same) return pairByPosition("");
  if (!here?.has_texts || !there?.has_texts) return pairByPosition("Not all texts are known: aligned by position.");
  if (Math.max(...lengths.query, ...lengths.key) > MAX_TOKENS)
    return pairByPosition(`Longer than ${formatCount(MAX_TOKENS)} tokens: aligned by position, not by the texts.`);
  const getTexts = ({ meta, layer }: TraceHead, side: Side, length: number): string[] | undefined =>
    traces.getTexts(meta).getRange(layer, side, 0, length);
  // In self-attention, queries and keys are the same tokens.
  const sides: Side[] = [here, there].every(({ cross, offset }) => !cross && offset === 0) ? ["key"] : ["key", "query"];
  const runs: Alignment[] = [];
  for (const side of sides) {
    const [mine, yours] = [getTexts(one, side, lengths[side][0]), getTexts(other, side, lengths[side][1])];
    if (!mine || !yours) return pairByPosition("Reading the texts\u2026", true);
    if (!beside) return pairByPosition(describeDifference(mine, yours));
    runs.push(createAlignment(findCommonRuns(mine, yours), ...lengths[side]));
  }
  const [keys = alignByPosition(0, 0), queries = keys] = runs;
  return createPairing(describeUnmatched(keys, ...lengths.key), queries, keys);
}

/** From the second to the first. */
export function invertPairing({ query, key, ...rest }: TokenPairing): TokenPairing {
  return { ...rest, query: query.invert(), key: key.invert() };
}

export function mapPins({ pinQuery, pinKey }: Pick<State, "pinQuery" | "pinKey">, { query, key }: TokenPairing): Pick<State, "pinQuery" | "pinKey"> {
  return {
    pinQuery: pinQuery === null ? null : query.findPartner(pinQuery),
    pinKey: pinKey === null ? null : key.findPartner(pinKey),
  };
}

export function mapCell(cell: Cell, pairing: TokenPairing | null): Cell | null {
  const [query, key] = pairing ? [pairing.query.findPartner(cell.query), pairing.key.findPartner(cell.key)] : [null, null];
  return query === null || key === null ? null : { query, key };
}

export function mapPlace({ query, key }: Cell, pairing: TokenPairing): Cell {
  return { query: pairing.query.mapPosition(query), key: pairing.key.mapPosition(key) };
}

function describeDifference(one: readonly string[], other: readonly string[]): string {
  const count = one.filter((text, place) => text !== other[place]).length;
  return count === 0 ? "" : `${formatCount(count)} of ${formatCount(one.length)} tokens differ: position by position, named as in A.`;
}

function describeUnmatched(keys: Alignment, one: number, other: number): string {
  const count = ({ unmatched }: Alignment): number => unmatched.reduce((sum, [from, to]) => sum + to - from, 0);
  const [here, there] = [count(keys), count(keys.invert())];
  if (here + there === 0) return "";
  return (
    `Aligned by their tokens: ${formatCount(here)} of ${formatCount(one)} in A and ${formatCount(there)} of ${formatCount(other)} in B ` +
    "have no partner; their numbers are hatched."
  );
}
