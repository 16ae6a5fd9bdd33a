// Small pictures of heads, to show under tiles that are loading: 64 x 64 bins of the whole matrix.
//
// In: tiles with all heads of a layer, as the heads view loads them. Out: that of one head.
// Memory: 4 KB per head, of at most 256 layers.
import { LruCache } from "../lru_cache";
import { countVisibleKeys, type Layer } from "../server/protocol";
import type { LoadedTile } from "./tile_store";

const MAX_LAYERS = 256;

/** Pictures that are loaded already. */
export class PictureCache {
  readonly #layers = new LruCache<string, LoadedTile>(MAX_LAYERS);

  /** `tile` has the pictures of all heads one below the other: `tile.y` rows each. */
  set(trace: string, layer: number, tile: LoadedTile): void {
    this.#layers.set(`${trace}/${layer}`, tile);
  }

  get(trace: string, layer: number, head: number): LoadedTile | null {
    const tile = this.#layers.get(`${trace}/${layer}`);
    if (!tile || (head + 1) * tile.y > tile.rows) return null;
    return { ...tile, rows: tile.y, codes: tile.codes.subarray(head * tile.y * tile.columns, (head + 1) * tile.y * tile.columns) };
  }
}

/** How many keys the query in the middle of a row of a picture sees. */
export function countPictureKeys(layer: Pick<Layer, "causal" | "offset" | "window" | "queries" | "keys">, tile: LoadedTile, row: number): number {
  return countVisibleKeys(layer, (((row % tile.y) + 0.5) * layer.queries) / tile.y - 1);
}
