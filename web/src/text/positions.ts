/**
 * Positions in the text view: of pins, of links and of the shown window.
 *
 * Queries and keys of one text have one page, on which positions are those of the keys: with tokens that were read
 * before, the first query is not the first key. Of two texts each side has its own.
 */

import type { PinState } from "../pins";
import type { Links, MatrixShape, Side } from "../server/protocol";

export const SIDES: readonly Side[] = ["query", "key"];
/** The most that the server sends at once. */
export const MAX_TOKENS = 262_144;

export function getOtherSide(side: Side): Side {
  return side === "query" ? "key" : "query";
}

/** The page on which positions of a side are. */
export function getPageSide({ cross }: MatrixShape, side: Side): Side {
  return cross ? side : "key";
}

/** The offset between positions of a side and of its page. */
export function getShift({ cross, offset }: MatrixShape, side: Side): number {
  return cross || side === "key" ? 0 : offset;
}

export function getLength({ queries, keys }: MatrixShape, page: Side): number {
  return page === "query" ? queries : keys;
}

/** The pinned positions on the pages; in one text a token is both a query and a key. */
export function getPinnedPositions(shape: MatrixShape, { pinQuery, pinKey: key }: PinState): Record<Side, number | null> {
  const first = getShift(shape, "query");
  const query = pinQuery === null ? null : pinQuery + first;
  if (shape.cross) return { query, key };
  return { query: query ?? (key !== null && key >= first ? key : null), key: key ?? query };
}

/** The pins of a token of a page. */
export function createPins(shape: MatrixShape, page: Side, at: number): Partial<PinState> {
  if (shape.cross) return page === "query" ? { pinQuery: at } : { pinKey: at };
  return { pinKey: at, pinQuery: at < shape.offset ? null : at - shape.offset };
}

/** Shift links of the server to positions on the pages. */
export function shiftLinks(shape: MatrixShape, side: Side, { span, links, ...rest }: Links): Links {
  const [mine, others] = [getShift(shape, side), getShift(shape, getOtherSide(side))];
  return {
    ...rest,
    span: [span[0] + mine, span[1] + mine],
    links: links.map(([start, stop, weight]) => [start + others, stop + others, weight]),
  };
}

/** The tokens [from, to) to show: all, or a window around `at`; the shown window stays if it contains `at`. */
export function chooseWindow(length: number, at: number, shown: readonly [number, number]): readonly [number, number] {
  if (length <= MAX_TOKENS) return [0, length];
  if (at >= shown[0] && at < shown[1]) return shown;
  const from = Math.max(0, Math.min(Math.floor(at) - MAX_TOKENS / 2, length - MAX_TOKENS));
  return [from, from + MAX_TOKENS];
}

/** The links of a span: the mean of what its queries give, or the sum of what its keys receive. */
export function combineLinks(side: Side, all: readonly Links[]): Links {
  const [first, ...rest] = all;
  if (!first || rest.length === 0) return first ?? { span: [0, 0], total: 0, count: 0, links: [] };
  const share = side === "query" ? 1 / all.length : 1;
  const sums = new Map<number, [start: number, stop: number, weight: number]>();
  for (const { links } of all)
    for (const [start, stop, weight] of links) sums.set(start, [start, stop, (sums.get(start)?.[2] ?? 0) + share * weight]);
  return {
    span: [first.span[0], rest.at(-1)?.span[1] ?? 0],
    total: share * all.reduce((sum, { total }) => sum + total, 0),
    count: Math.max(...all.map(({ count }) => count)),
    links: [...sums.values()].sort((one, other) => other[2] - one[2]),
  };
}
