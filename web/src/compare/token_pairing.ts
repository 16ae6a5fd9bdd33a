/** How the tokens of two heads belong together, along both sides of their matrices, and what is to be said of it. */

import { aligned, byPosition, commonRuns, MOST, type Aligned } from "./alignment";
import type { Cell } from "../map/map_view";
import { counted } from "../format_numbers";
import type { Shown } from "../panels/inspector";
import type { Side } from "../server/protocol";
import type { Traces } from "../server/trace_cache";
import type { State } from "../state";

export interface Pairing extends Readonly<Record<Side, Aligned>> {
  /** Whose it is. */
  readonly name: string;
  readonly words: string;
  /** Texts are on their way, and positions stand in for them. */
  readonly reading: boolean;
}

/** The same as before, as long as it is that of the same two and whole. */
export function pairingOf(traces: Traces, one: Shown, other: Shown, beside: boolean, before: Pairing | null): Pairing {
  const name = [one.meta.trace, one.layer, other.meta.trace, other.layer, beside].join();
  if (before?.name === name && !before.reading) return before;
  const [here, there] = [one.meta.layers[one.layer], other.meta.layers[other.layer]];
  const lengths = { query: [here?.queries ?? 0, there?.queries ?? 0], key: [here?.keys ?? 0, there?.keys ?? 0] } as const;
  const made = (words: string, query: Aligned, key: Aligned, reading = false): Pairing => ({ name, words, query, key, reading });
  const straight = (words: string, reading = false): Pairing =>
    made(words, byPosition(...lengths.query), byPosition(...lengths.key), reading);
  const same = one.meta.trace === other.meta.trace && Object.values(lengths).every(([long, wide]) => long === wide);
  if (same) return straight("");
  if (!here?.texts || !there?.texts) return straight("Not all texts are known: aligned by position.");
  if (Math.max(...lengths.query, ...lengths.key) > MOST)
    return straight(`Longer than ${counted(MOST)} tokens: aligned by position, not by the texts.`);
  const texts = ({ meta, layer }: Shown, side: Side, length: number): string[] | undefined =>
    traces.textsOf(meta).range(layer, side, 0, length);
  // Where a text looks at itself, both sides are the same.
  const sides: Side[] = [here, there].every(({ cross, offset }) => !cross && offset === 0) ? ["key"] : ["key", "query"];
  const runs: Aligned[] = [];
  for (const side of sides) {
    const [mine, yours] = [texts(one, side, lengths[side][0]), texts(other, side, lengths[side][1])];
    if (!mine || !yours) return straight("Reading the texts\u2026", true);
    if (!beside) return straight(differing(mine, yours));
    runs.push(aligned(commonRuns(mine, yours), ...lengths[side]));
  }
  const [keys = byPosition(0, 0), queries = keys] = runs;
  return made(withoutPartner(keys, ...lengths.key), queries, keys);
}

/** From the second to the first. */
export function backwards({ query, key, ...rest }: Pairing): Pairing {
  return { ...rest, query: query.back(), key: key.back() };
}

export function pinsOf({ pinQuery, pinKey }: Pick<State, "pinQuery" | "pinKey">, { query, key }: Pairing): Pick<State, "pinQuery" | "pinKey"> {
  return {
    pinQuery: pinQuery === null ? null : query.partner(pinQuery),
    pinKey: pinKey === null ? null : key.partner(pinKey),
  };
}

export function partnerOf(cell: Cell, pairing: Pairing | null): Cell | null {
  const [query, key] = pairing ? [pairing.query.partner(cell.query), pairing.key.partner(cell.key)] : [null, null];
  return query === null || key === null ? null : { query, key };
}

export function placeOf({ query, key }: Cell, pairing: Pairing): Cell {
  return { query: pairing.query.there(query), key: pairing.key.there(key) };
}

function differing(one: readonly string[], other: readonly string[]): string {
  const count = one.filter((text, place) => text !== other[place]).length;
  return count === 0 ? "" : `${counted(count)} of ${counted(one.length)} tokens differ: position by position, named as in A.`;
}

function withoutPartner(keys: Aligned, one: number, other: number): string {
  const count = ({ alone }: Aligned): number => alone.reduce((sum, [from, to]) => sum + to - from, 0);
  const [here, there] = [count(keys), count(keys.back())];
  if (here + there === 0) return "";
  return (
    `Aligned by their tokens: ${counted(here)} of ${counted(one)} in A and ${counted(there)} of ${counted(other)} in B ` +
    "have no partner; their numbers are hatched."
  );
}
