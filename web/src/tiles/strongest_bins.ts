// The strongest bins of a window of a tile, found from their codes alone.
import { decodeWeight, type Tile } from "../server/tile_codec";

/** Half-open, in bins of the tile; what lies outside it is left out. */
export interface BinWindow {
  rows: readonly [number, number];
  columns: readonly [number, number];
}

export interface Bin {
  row: number;
  column: number;
  value: number;
}

function forEachBin(tile: Tile, window: BinWindow, visit: (code: number, row: number, column: number) => void): void {
  const [left, right] = [Math.max(0, window.columns[0]), Math.min(tile.columns, window.columns[1])];
  for (let row = Math.max(0, window.rows[0]); row < Math.min(tile.rows, window.rows[1]); row++) {
    for (let column = left; column < right; column++) visit(tile.codes[row * tile.columns + column] ?? 0, row, column);
  }
}

/** At most `count`, the strongest first; of equals at the last place, those nearest the top. Masked and zero never count. */
export function findStrongestBins(tile: Tile, window: BinWindow, count: number): Bin[] {
  // Codes are ordered like weights: count them, then take what lies at or over the code that leaves `count`.
  const histogram = new Uint32Array(256);
  forEachBin(tile, window, (code) => (histogram[code] = (histogram[code] ?? 0) + 1));
  let [least, taken] = [256, 0];
  while (least > 2 && taken < count) taken += histogram[--least] ?? 0;
  const result: Bin[] = [];
  let ties = 0;
  forEachBin(tile, window, (code, row, column) => {
    if (code > least || (code === least && ties++ < count)) result.push({ row, column, value: decodeWeight(code) });
  });
  return result.sort((one, other) => other.value - one.value).slice(0, count);
}
