/**
 * Where words stand in the text.
 *
 * Words of a query are at their last place, of which the last token counts; words of a key are at their last place
 * before the query: the rule of `attnscope.heads.links.parse_link`.
 */

import type { FindResult, Layer, Side } from "../server/protocol";
import { resolvePositions, type LinkSide, type Positions } from "../questions/parse_question";
import type { Link } from "../questions/head_question";

export interface TextSearch {
  find(side: Side, text: string, after: number, backward: boolean, signal: AbortSignal): Promise<FindResult>;
  /** The texts of a half-open range of tokens. */
  loadTexts(side: Side, from: number, to: number, signal: AbortSignal): Promise<readonly string[]>;
}

export interface Place extends Positions {
  /** Among all places, from 0. */
  readonly index: number;
  readonly count: number;
  /** Capital and small letters agree as well. */
  readonly exact: boolean;
  /** The text before, in and after it. */
  readonly context: readonly [before: string, words: string, after: string];
}

const CONTEXT_TOKENS = 5;

/** The place that begins at a token. */
async function readPlace(search: TextSearch, side: Side, words: string, found: FindResult, length: number, signal: AbortSignal): Promise<Place> {
  const first = found.position ?? 0;
  const from = Math.max(0, first - CONTEXT_TOKENS);
  const texts = await search.loadTexts(side, from, Math.min(length, first + words.length + 1 + CONTEXT_TOKENS), signal);
  const inside = texts.slice(first - from);
  const whole = inside.join("");
  const at = whole.toLowerCase().indexOf(words.toLowerCase());
  let [count, end] = [0, 0];
  while (count === 0 || (at >= 0 && end < at + words.length && count < inside.length)) end += inside[count++]?.length ?? 0;
  return {
    ...{ first, last: first + count - 1, index: found.index, count: found.count },
    exact: at >= 0 && whole.startsWith(words, at),
    context: [texts.slice(0, first - from).join(""), inside.slice(0, count).join(""), inside.slice(count, count + CONTEXT_TOKENS).join("")],
  };
}

/** Up to `limit` places, the last first; those that end before a token if one is given. */
export async function findLastPlaces(
  search: TextSearch,
  side: Side,
  words: string,
  length: number,
  before: number | null,
  limit: number,
  signal: AbortSignal,
): Promise<readonly Place[]> {
  const places: Place[] = [];
  for (let at = Math.min(before ?? length, length) - 1; at >= 0 && places.length < limit; ) {
    const found = await search.find(side, words, at, true, signal);
    if (found.position === null) break;
    const place = await readPlace(search, side, words, found, length, signal);
    if (before === null || place.last < before) places.push(place);
    at = place.first - 1;
  }
  return places;
}

/** Up to `limit` places from a token on, and then from the beginning. */
export async function findNextPlaces(
  search: TextSearch,
  side: Side,
  words: string,
  length: number,
  start: number,
  backward: boolean,
  limit: number,
  signal: AbortSignal,
): Promise<readonly Place[]> {
  const places: Place[] = [];
  const isInside = (at: number): boolean => at >= 0 && at < length;
  for (let at = start; places.length < limit; ) {
    let found = isInside(at) ? await search.find(side, words, at, backward, signal) : null;
    if (found?.position === undefined || (found.position === null && found.count > 0))
      found = await search.find(side, words, backward ? length - 1 : 0, backward, signal);
    const { position } = found;
    if (position === null || places.some(({ first }) => first === position)) break;
    places.push(await readPlace(search, side, words, found, length, signal));
    at = position + (backward ? -1 : 1);
  }
  return places;
}

/** A link that a text may mean. */
export interface LinkChoice {
  readonly link: Link;
  /** The text around the words; null for positions. */
  readonly query: Place | null;
  readonly key: Place | null;
}

const MAX_QUERIES = 3;
const MAX_KEYS = 4;

/** The links that two sides may mean: first the one of the rule, then other places of the key, then of the query. */
export async function findLinks(
  search: TextSearch,
  query: LinkSide | null,
  key: LinkSide | null,
  layer: Pick<Layer, "queries" | "keys" | "offset" | "cross">,
  signal: AbortSignal,
): Promise<readonly LinkChoice[]> {
  const queries = await findSide(search, "query", query, layer.queries, null, MAX_QUERIES, signal);
  const choices: LinkChoice[] = [];
  for (const [index, one] of queries.entries()) {
    const at = one.positions;
    // The last token of some words counts.
    const asQuery = at && one.place ? { first: at.last, last: at.last } : at;
    const before = asQuery && !layer.cross ? asQuery.first + layer.offset : null;
    const keys = await findSide(search, "key", key, layer.keys, before, index === 0 ? MAX_KEYS : 1, signal);
    choices.push(...keys.map((other) => ({ link: { query: asQuery, key: other.positions }, query: one.place, key: other.place })));
  }
  return choices.filter(({ link }) => link.query || link.key);
}

interface FoundSide {
  readonly positions: Positions | null;
  readonly place: Place | null;
}

async function findSide(
  search: TextSearch,
  side: Side,
  wanted: LinkSide | null,
  length: number,
  before: number | null,
  limit: number,
  signal: AbortSignal,
): Promise<readonly FoundSide[]> {
  if (!wanted) return [{ positions: null, place: null }];
  if (!("words" in wanted)) {
    const positions = resolvePositions(wanted, length);
    return positions ? [{ positions, place: null }] : [];
  }
  const places = await findLastPlaces(search, side, wanted.words, length, before, limit, signal);
  const sorted = [...places].sort((one, other) => Number(other.exact) - Number(one.exact));
  return sorted.map((place) => ({ positions: { first: place.first, last: place.last }, place }));
}
