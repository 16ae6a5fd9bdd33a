/**
 * Numbers per patch, and where patches are.
 *
 * In: responses of the server. Out: values of a head and frame, patches by position and back, ranges of positions of a part of the image.
 * Nothing is drawn here.
 */

import { parseRuns, type PatchSide, type PictureMap } from "../server/protocol";

/** A patch of a frame. */
export interface Patch {
  readonly row: number;
  readonly column: number;
}

/** Patches from one corner to the other, both included. */
export interface PatchBox {
  readonly top: number;
  readonly left: number;
  readonly bottom: number;
  readonly right: number;
}

export const ABSENT = -1;
/** Of a request. */
export const MAX_RUNS = 256;

/** heads x frames x rows x columns. */
export function decodeValues({ values }: PictureMap): Float32Array {
  const plain = atob(values);
  const bytes = new Uint8Array(plain.length);
  for (let index = 0; index < plain.length; index++) bytes[index] = plain.charCodeAt(index);
  return new Float32Array(bytes.buffer);
}

/** The values of one head in one frame, row by row. */
export function getFrame(values: Float32Array, { grid: [frames, rows, columns] }: Pick<PictureMap, "grid">, head: number, frame: number): Float32Array {
  const size = rows * columns;
  const start = (head * frames + frame) * size;
  return values.subarray(start, start + size);
}

/** The values without those at some positions, which become NaN. */
export function hidePositions(values: Float32Array, side: PatchSide, hidden: ReadonlySet<number>): Float32Array {
  if (hidden.size === 0) return values;
  const size = side.positions.length;
  return values.map((value, index) => (hidden.has(side.positions[index % size] ?? ABSENT) ? NaN : value));
}

export function findLargest(values: Float32Array): number {
  return values.reduce((largest, value) => (value > largest ? value : largest), 0);
}

export function sumValues(values: Float32Array): number {
  return values.reduce((sum, value) => (Number.isNaN(value) ? sum : sum + value), 0);
}

/** The position of a patch in the sequence; -1 where the layer does not have it. */
export function getPosition({ grid: [, rows, columns], positions }: PatchSide, frame: number, { row, column }: Patch): number {
  return positions[(frame * rows + row) * columns + column] ?? ABSENT;
}

/** The frame and patch at a position; null for a token that is not a patch. */
export function findPatch({ grid: [, rows, columns], positions }: PatchSide, position: number): (Patch & { readonly frame: number }) | null {
  const index = positions.indexOf(position);
  if (index < 0) return null;
  const inFrame = index % (rows * columns);
  return { frame: Math.floor(index / (rows * columns)), row: Math.floor(inFrame / columns), column: inFrame % columns };
}

/** The special token at a position, or null. */
export function findSpecial({ special }: PatchSide, position: number): string | null {
  for (const [name, start, stop] of special)
    if (position >= start && position < stop) return stop - start === 1 ? name : `${name} ${position - start}`;
  return null;
}

export function toBox(one: Patch, other: Patch): PatchBox {
  return {
    top: Math.min(one.row, other.row),
    left: Math.min(one.column, other.column),
    bottom: Math.max(one.row, other.row),
    right: Math.max(one.column, other.column),
  };
}

/** The positions of a part of a frame as ranges in order, as in `State.region`; null where they are too many. */
export function toRuns(side: PatchSide, frame: number, { top, left, bottom, right }: PatchBox): string | null {
  const found: number[] = [];
  for (let row = top; row <= bottom; row++) for (let column = left; column <= right; column++) found.push(getPosition(side, frame, { row, column }));
  const sorted = found.filter((position) => position !== ABSENT).sort((one, other) => one - other);
  const runs: [number, number][] = [];
  for (const position of sorted) {
    const last = runs.at(-1);
    if (last && last[1] === position) last[1]++;
    else runs.push([position, position + 1]);
  }
  return runs.length > MAX_RUNS || runs.length === 0 ? null : runs.map((ends) => ends.join("-")).join();
}

/** The smallest box of a frame around the patches of a region; null where it has none of them. */
export function findRegion(side: PatchSide, frame: number, region: string): PatchBox | null {
  if (region === "") return null;
  const runs = parseRuns(region);
  const [, rows, columns] = side.grid;
  let box: PatchBox | null = null;
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const position = getPosition(side, frame, { row, column });
      if (!runs.some(([start, stop]) => position >= start && position < stop)) continue;
      box = box ? { top: Math.min(box.top, row), left: Math.min(box.left, column), bottom: Math.max(box.bottom, row), right: Math.max(box.right, column) } : toBox({ row, column }, { row, column });
    }
  return box;
}

/** The sum of the values in a box. */
export function sumBox(values: Float32Array, columns: number, { top, left, bottom, right }: PatchBox): number {
  let sum = 0;
  for (let row = top; row <= bottom; row++)
    for (let column = left; column <= right; column++) {
      const value = values[row * columns + column] ?? NaN;
      if (!Number.isNaN(value)) sum += value;
    }
  return sum;
}
