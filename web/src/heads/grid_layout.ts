/** Where the small pictures of heads lie, layers down and heads across, and how one goes from one to the next. */

import type { LoadedTile } from "../tiles/tile_store";
import type { Box } from "../paint/surface";
import type { HeadId } from "../state";

/** The names of layers on the left, the numbers of heads on top. */
export const LEFT = 36;
export const TOP = 20;
export const GAP = 4;
export const SIZES = [32, 64, 128] as const;

/** The place of a picture of this size, in CSS pixels from the corner of all. */
export function getCellBox([layer, head]: HeadId, size: number): Box {
  const step = size + GAP;
  return { left: LEFT + head * step, top: TOP + layer * step, width: size, height: size };
}

/** What all pictures together need; `heads` counts those of each layer. */
export function getExtent(heads: readonly number[], size: number): { width: number; height: number } {
  const { left, top } = getCellBox([heads.length, Math.max(0, ...heads)], size);
  return { width: left, height: top };
}

/** The largest size up to the middle one of which a whole layer fits beside its name. */
export function chooseSize(heads: readonly number[], width: number): number {
  return getExtent(heads, SIZES[1]).width <= width ? SIZES[1] : SIZES[0];
}

export function findHeadAt(x: number, y: number, heads: readonly number[], size: number): HeadId | null {
  const step = size + GAP;
  const [layer, head] = [Math.floor((y - TOP) / step), Math.floor((x - LEFT) / step)];
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

/** Where a key leads from a head; null for a key that leads nowhere. */
export function stepHead([layer, head]: HeadId, key: string, heads: readonly number[]): HeadId | null {
  const step = KEY_STEPS[key];
  if (!step) return null;
  const within = (value: number, count: number): number => Math.max(0, Math.min(count - 1, value));
  const down = within(layer + step[0], heads.length);
  return [down, within(head + step[1], heads[down] ?? 1)];
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
