// The colours of tiles on a scale: the same for all codes, or, relative to uniform attention, by the query of a row.
import { createLookup, createUniformLookups, type ColourScale } from "./colour";
import { TILE_SIZE } from "../geometry/zoom_plan";
import { LruCache } from "../lru_cache";
import type { TileColours } from "../tiles/tile_images";
import type { LoadedTile } from "../tiles/tile_store";

/** A lookup has 1 KB. */
const MAX_LOOKUPS = 4096;

/** `countKeys`: how many keys the query in the middle of a row of bins sees. */
export function createTileColours(scale: ColourScale, countKeys: (tile: LoadedTile, side: "row" | "column", index: number) => number, isSplit = false): TileColours {
  if (scale.kind !== "uniform") {
    const lookup = createLookup(scale);
    return { getLookup: () => lookup, isSplit: false };
  }
  const create = createUniformLookups(scale);
  const lookups = new LruCache<number, Uint32Array>(MAX_LOOKUPS);
  const getLookup: TileColours["getLookup"] = (tile, side, index) => {
    const keys = countKeys(tile, side, index);
    let lookup = lookups.get(keys);
    if (!lookup) lookups.set(keys, (lookup = create(keys)));
    return lookup;
  };
  return { getLookup, isSplit };
}

/** The query in the middle of a row of bins, with a fraction. */
export function findMiddleQuery({ y, x }: LoadedTile, side: "row" | "column", index: number, stride: number): number {
  return ((side === "row" ? y : x) * TILE_SIZE + index) * stride + (stride - 1) / 2;
}
