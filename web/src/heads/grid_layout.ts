/** Where the cells of a grid of heads are, layers down and heads across, and where keys lead. */

import type { LoadedTile } from "../tiles/tile_store";
import type { Box } from "../geometry/box";
import type { HeadId } from "../state";

/** CSS pixels for the names of layers on the left and of columns on top. */
export const LEFT = 36;
export const TOP = 20;
export const GAP = 4;
export const SIZES = [32, 64, 128] as const;

/** CSS pixels. */
export interface CellSize {
  readonly width: number;
  readonly height: number;
}

/** The box of a cell, from the corner of the grid. */
export function getCellBox([layer, head]: HeadId, { width, height }: CellSize): Box {
  return { left: LEFT + head * (width + GAP), top: TOP + layer * (height + GAP), width, height };
}

/** The size of the whole grid; `heads` counts the heads of each layer. */
export function getExtent(heads: readonly number[], size: CellSize): CellSize {
  const { left, top } = getCellBox([heads.length, Math.max(0, ...heads)], size);
  return { width: left, height: top };
}

/** The medium size if a whole layer fits into the width, else the small one. */
export function chooseSize(heads: readonly number[], width: number): number {
  const [small, medium] = SIZES;
  return getExtent(heads, { width: medium, height: medium }).width <= width ? medium : small;
}

export function findHeadAt(x: number, y: number, heads: readonly number[], size: CellSize): HeadId | null {
  const layer = Math.floor((y - TOP) / (size.height + GAP));
  const head = Math.floor((x - LEFT) / (size.width + GAP));
  return x >= LEFT && y >= TOP && head < (heads[layer] ?? 0) ? [layer, head] : null;
}

const KEY_STEPS: Readonly<Record<string, HeadId>> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  PageUp: [-5, 0],
  PageDown: [5, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

/** The head that a key leads to; null for other keys. */
export function stepHead([layer, head]: HeadId, key: string, heads: readonly number[]): HeadId | null {
  const step = KEY_STEPS[key];
  if (!step) return null;
  const clampIndex = (value: number, count: number): number => Math.max(0, Math.min(count - 1, value));
  const down = clampIndex(layer + step[0], heads.length);
  return [down, clampIndex(head + step[1], heads[down] ?? 1)];
}

/**
 * The same pictures with `factor` x `factor` bins in one, where the screen has fewer pixels than there are bins: the
 * largest of them, for a thin line would be lost between the pixels otherwise. `tile.y` counts the rows of a picture.
 */
export function coarsenTile(tile: LoadedTile, factor: number): LoadedTile {
  if (factor <= 1) return tile;
  const [down, across] = [Math.ceil(tile.y / factor), Math.ceil(tile.columns / factor)];
  const heads = tile.rows / tile.y;
  const codes = new Uint8Array(heads * down * across);
  for (let row = 0; row < tile.rows; row++) {
    const to = (Math.floor(row / tile.y) * down + Math.floor((row % tile.y) / factor)) * across;
    for (let column = 0; column < tile.columns; column++) {
      const at = to + Math.floor(column / factor);
      codes[at] = Math.max(codes[at] ?? 0, tile.codes[row * tile.columns + column] ?? 0);
    }
  }
  return { ...tile, codes, rows: heads * down, columns: across, y: down };
}
