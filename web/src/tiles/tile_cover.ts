// What to draw where: for every tile of a view, the tile itself or the best loaded substitute.
//
// In: the plan, the view, a lookup of tiles. Out: placements in drawing order.
import { getAncestor, TILE_SIZE, type TileAddress, type TokenRanges, type ZoomPlan } from "../geometry/zoom_plan";
import type { LoadedTile, TileRequest, TileResult } from "./tile_store";
import type { Channel, Layer } from "../server/protocol";
import type { ChannelMode } from "../state";

export type PlacementState = "drawn" | "placeholder" | "missing" | "masked" | "failed";

/** An area of the matrix in tokens, and the tile that fills it. The end may lie past the last token: the painter clips. */
export interface TilePlacement {
  state: PlacementState;
  query: number;
  key: number;
  queryEnd: number;
  keyEnd: number;
  /** The tile to draw from, with its stride and first tokens; null for missing, masked and failed. */
  tile: LoadedTile | null;
  address: TileAddress;
  stride: number;
}

export type TileLookup = (address: TileAddress) => TileResult | undefined;

export type MaskInfo = Pick<Layer, "causal" | "offset" | "window">;

function createPlacement(plan: ZoomPlan, target: TileAddress, from: TileAddress, tile: LoadedTile | null, state: PlacementState): TilePlacement {
  const span = TILE_SIZE * plan.getStride(target.z);
  const stride = plan.getStride(from.z);
  const query = target.y * span;
  const key = target.x * span;
  // Whole bins, also the last one that is cut off by the end of the matrix.
  const queryLimit = tile ? (from.y * TILE_SIZE + tile.rows) * stride : Infinity;
  const keyLimit = tile ? (from.x * TILE_SIZE + tile.columns) * stride : Infinity;
  return { state, query, key, queryEnd: Math.min(query + span, queryLimit), keyEnd: Math.min(key + span, keyLimit), tile, address: from, stride };
}

function findCoarserTile(plan: ZoomPlan, target: TileAddress, lookup: TileLookup): TilePlacement | null {
  for (let levels = 1; levels <= target.z; levels++) {
    const from = getAncestor(target, levels);
    const held = lookup(from);
    if (held === "empty") return createPlacement(plan, target, from, null, "masked");
    if (held && held !== "failed") return createPlacement(plan, target, from, held, "placeholder");
  }
  return null;
}

/** After zooming out the finer tiles are still loaded, and better than a coarse ancestor. */
function findFinerTiles(plan: ZoomPlan, target: TileAddress, lookup: TileLookup, levels: number): TilePlacement[] {
  if (levels === 0 || target.z >= plan.deepest) return [];
  const [down, across] = plan.countTiles(target.z + 1);
  const result: TilePlacement[] = [];
  for (let part = 0; part < 4; part++) {
    const child = { z: target.z + 1, y: target.y * 2 + (part >> 1), x: target.x * 2 + (part & 1) };
    if (child.y >= down || child.x >= across) continue;
    const held = lookup(child);
    if (held === "empty") result.push(createPlacement(plan, child, child, null, "masked"));
    else if (held && held !== "failed") result.push(createPlacement(plan, child, child, held, "placeholder"));
    else result.push(...findFinerTiles(plan, child, lookup, levels - 1));
  }
  return result;
}

export function coverView(plan: ZoomPlan, z: number, view: TokenRanges, masking: MaskInfo, lookup: TileLookup): TilePlacement[] {
  const result: TilePlacement[] = [];
  for (const target of plan.findTiles(z, view)) {
    if (masking.causal && plan.isAboveDiagonal(target, masking.offset)) {
      result.push(createPlacement(plan, target, target, null, "masked"));
      continue;
    }
    const held = lookup(target);
    if (held === "empty") result.push(createPlacement(plan, target, target, null, "masked"));
    else if (held && held !== "failed") result.push(createPlacement(plan, target, target, held, "drawn"));
    else {
      const instead = findCoarserTile(plan, target, lookup);
      if (instead?.state === "masked") result.push(instead);
      else {
        result.push(instead ?? createPlacement(plan, target, target, null, held === "failed" ? "failed" : "missing"));
        result.push(...findFinerTiles(plan, target, lookup, 2));
      }
    }
  }
  return result;
}

export function getChannels(stride: number, mode: ChannelMode): Channel[] {
  // At stride 1 mean and max are the same number, and only the mean is served.
  if (stride === 1 || mode === "mean") return ["mean"];
  return mode === "max" ? ["max"] : ["mean", "max"];
}

/** The tiles to request: the whole matrix first, then the view from its centre outwards, then one ring around it when idle. */
export function listTileRequests(plan: ZoomPlan, z: number, view: TokenRanges, masking: MaskInfo, mode: ChannelMode): TileRequest[] {
  const span = TILE_SIZE * plan.getStride(z);
  const middle = { y: (view.query[0] + view.query[1]) / 2 / span, x: (view.key[0] + view.key[1]) / 2 / span };
  const isAllowed = (tile: TileAddress): boolean => !(masking.causal && plan.isAboveDiagonal(tile, masking.offset));
  const sortByDistance = (tiles: TileAddress[]): TileAddress[] =>
    tiles
      .filter(isAllowed)
      .map((tile) => ({ tile, distance: Math.hypot(tile.y + 0.5 - middle.y, tile.x + 0.5 - middle.x) }))
      .sort((one, other) => one.distance - other.distance)
      .map((one) => one.tile);
  const inside = plan.findTiles(z, view);
  const names = new Set(inside.map((tile) => `${tile.y}/${tile.x}`));
  const around: TokenRanges = {
    query: [view.query[0] - span, view.query[1] + span],
    key: [view.key[0] - span, view.key[1] + span],
  };
  const ring = plan.findTiles(z, around).filter((tile) => !names.has(`${tile.y}/${tile.x}`));
  const result: TileRequest[] = [];
  const push = (tile: TileAddress, channels: Channel[], idle: boolean): void => {
    for (const channel of channels) result.push(idle ? { ...tile, channel, idle } : { ...tile, channel });
  };
  const getColourChannels = (at: number): Channel[] => getChannels(plan.getStride(at), mode).slice(0, 1);
  if (z > 0) push({ z: 0, y: 0, x: 0 }, getColourChannels(0), false);
  const nearest = sortByDistance(inside);
  // Colour first everywhere, the dots of the second channel after it.
  for (const tile of nearest) push(tile, getColourChannels(z), false);
  for (const tile of nearest) push(tile, getChannels(plan.getStride(z), mode).slice(1), false);
  for (const tile of sortByDistance(ring)) push(tile, getColourChannels(z), true);
  return result;
}
