// The data of a map, of one head or of two in one picture. What both share is implemented here.
//
// In: views. Out: what to draw, from loaded data; missing data is requested.
import { decodeWeight } from "../server/tile_codec";
import { coverView, getChannels, listTileRequests, type MaskInfo, type TilePlacement } from "../tiles/tile_cover";
import type { StripBlock } from "../paint/marginals";
import { getAncestor, TILE_SIZE, type TileAddress, type TokenRanges, type ZoomPlan } from "../geometry/zoom_plan";
import { countVisibleKeys, type Channel, type MarginalKind, type Meta, type Section, type Side } from "../server/protocol";
import { formatWeight } from "../format_numbers";
import { chooseBlock, findSpikes, type Spike } from "../tiles/spikes";
import { findStrongestBins } from "../tiles/strongest_bins";
import type { EvictedKeys } from "../server/evicted_keys";
import type { ChannelMode, Eviction } from "../state";
import type { LoadedTile, TileResult, TileSource } from "../tiles/tile_store";
import { getVisibleRange, type Viewport } from "../geometry/viewport";

/** What is known of one pair: null is masked; exact is false for a value read from a tile ("~"). */
export interface Reading {
  value: number | null;
  exact: boolean;
}

/** A reading for the reader; "~" marks approximate values. */
export function formatReading(reading: Reading | undefined): string {
  if (!reading) return "loading";
  if (reading.value === null) return "masked";
  return (reading.exact ? "" : "~") + formatWeight(reading.value);
}

/** A link between spans of tokens, read from the tiles. */
export interface WeightedSpan {
  query: [number, number];
  key: [number, number];
  value: number;
}

export interface TileDrawing {
  z: number;
  stride: number;
  channel: Channel;
  placements: TilePlacement[];
  /** A saved page holds no finer tiles here. */
  isCoarse: boolean;
}

/** How two heads are drawn in one picture, and their names. */
export interface PairDisplay {
  readonly mode: "split" | "ratio";
  readonly names: readonly [one: string, other: string];
}

export abstract class MapData {
  /** Null for a single head. */
  readonly pairDisplay: PairDisplay | null = null;
  abstract readonly meta: Meta | null;
  abstract readonly plan: ZoomPlan;
  abstract readonly masking: MaskInfo;
  /** The server's progress in building tiles; null while not known. */
  abstract readonly progress: number | null;
  abstract readonly tiles: TileSource;
  /** A small picture of the whole matrix, to show until tiles are loaded; null where there is none. */
  readonly preview: LoadedTile | null = null;
  /** The value of a pair: exact if loaded, else from the finest loaded tile. */
  abstract getReading(query: number, key: number, view: Viewport, mode: ChannelMode): Reading | undefined;
  /** A description of the pair under the pointer. */
  abstract describeCell(query: number, key: number, view: Viewport, mode: ChannelMode): string;
  abstract requestCells(range: TokenRanges): void;
  abstract getStrip(kind: MarginalKind, view: Viewport): StripBlock[];
  abstract getSections(side: Side): readonly Section[];
  /** The evicted keys; null for none, while they are loading, and in a picture of two heads. */
  getEvicted(_eviction: Eviction | null): EvictedKeys | null {
    return null;
  }

  abstract getSinkShare(view: Viewport): number | null;
  abstract pollProgress(): void;

  countKeys(query: number): number {
    return countVisibleKeys({ ...this.keyMask, keys: this.plan.keys }, query);
  }

  /** The mask of a head; a split picture hides nothing, but its heads do. */
  protected get keyMask(): MaskInfo {
    return this.masking;
  }

  /** The level that suits the zoom, or the next coarser one that a saved page stores completely. */
  chooseLevel(view: Viewport, mode: ChannelMode): number {
    const range = getVisibleRange(view);
    const isUnavailable = (tile: TileAddress): boolean =>
      !(this.masking.causal && this.plan.isAboveDiagonal(tile, this.masking.offset)) &&
      getChannels(this.plan.getStride(tile.z), mode).some((channel) => this.tiles.isUnavailable(tile, channel));
    let z = this.plan.chooseLevel(view.zoom);
    while (z > 0 && this.plan.findTiles(z, range).some(isUnavailable)) z--;
    return z;
  }

  requestTiles(view: Viewport, mode: ChannelMode, atOnce: boolean): void {
    this.tiles.request(listTileRequests(this.plan, this.chooseLevel(view, mode), getVisibleRange(view), this.masking, mode), atOnce);
  }

  getDrawing(view: Viewport, mode: ChannelMode): TileDrawing {
    const z = this.chooseLevel(view, mode);
    const stride = this.plan.getStride(z);
    const channel = getChannels(stride, mode)[0] ?? "mean";
    // Each level has its own channel: only the exact one serves a single channel.
    const findTile = (address: TileAddress): TileResult | undefined => this.tiles.get(address, getChannels(this.plan.getStride(address.z), mode)[0] ?? "mean");
    const placements = coverView(this.plan, z, getVisibleRange(view), this.masking, findTile);
    if (placements.some((placement) => placement.tile?.partial)) this.pollProgress();
    return { z, stride, channel, placements, isCoarse: z < this.plan.chooseLevel(view.zoom) };
  }

  /** Spikes of the drawn tiles whose second channel is loaded, as many as have room. */
  getSpikes(placements: readonly TilePlacement[], zoom: number): { placement: TilePlacement; spikes: Spike[] }[] {
    const result: { placement: TilePlacement; spikes: Spike[] }[] = [];
    for (const placement of placements) {
      if (!placement.tile || placement.state !== "drawn" || placement.stride === 1) continue;
      const max = this.tiles.get(placement.address, "max");
      if (typeof max === "object" && max.codes.length === placement.tile.codes.length) result.push({ placement, spikes: findSpikes(placement.tile, max, chooseBlock(placement.stride * zoom)) });
    }
    return result;
  }

  /** The whole picture, for the minimap. */
  getOverview(mode: ChannelMode): LoadedTile | null {
    const held = this.tiles.get({ z: 0, y: 0, x: 0 }, getChannels(this.plan.getStride(0), mode)[0] ?? "mean");
    return typeof held === "object" ? held : null;
  }

  /** The value of the bin drawn over a pair. */
  getBinReading(query: number, key: number, view: Viewport, channel: Channel): Reading | undefined {
    const deepest = this.chooseLevel(view, channel);
    const span = TILE_SIZE * this.plan.getStride(deepest);
    const target = { z: deepest, y: Math.floor(query / span), x: Math.floor(key / span) };
    for (let levels = 0; levels <= deepest; levels++) {
      const address = getAncestor(target, levels);
      const stride = this.plan.getStride(address.z);
      const held = this.tiles.get(address, stride === 1 ? "mean" : channel);
      if (held === "empty") return { value: null, exact: true };
      if (typeof held !== "object") continue;
      const row = Math.floor(query / stride) - address.y * TILE_SIZE;
      const column = Math.floor(key / stride) - address.x * TILE_SIZE;
      const code = held.codes[row * held.columns + column] ?? 0;
      return { value: code === 0 ? null : decodeWeight(code), exact: false };
    }
    return undefined;
  }

  /** The strongest bins in view by their largest weight, as far as tiles are loaded. */
  findStrongest(view: Viewport, mode: ChannelMode, count: number): WeightedSpan[] {
    const { placements } = this.getDrawing(view, mode);
    const range = getVisibleRange(view);
    const best: WeightedSpan[] = [];
    for (const { tile, address, stride } of placements) {
      if (!tile) continue;
      const max = stride === 1 ? tile : this.tiles.get(address, "max");
      const from = typeof max === "object" ? max : tile;
      const toBins = ([start, end]: readonly [number, number], block: number): [number, number] => [
        Math.floor(start / stride) - block * TILE_SIZE,
        Math.ceil(end / stride) - block * TILE_SIZE,
      ];
      const window = { rows: toBins(range.query, address.y), columns: toBins(range.key, address.x) };
      for (const { row, column, value } of findStrongestBins(from, window, count)) {
        const [query, key] = [(address.y * TILE_SIZE + row) * stride, (address.x * TILE_SIZE + column) * stride];
        best.push({ query: [query, Math.min(query + stride, this.plan.queries)], key: [key, Math.min(key + stride, this.plan.keys)], value });
      }
      best.sort((one, other) => other.value - one.value);
      best.length = Math.min(best.length, count);
    }
    return best;
  }

  /** Bits of the smallest and largest weight in the drawn tiles. */
  getValueRange(view: Viewport, mode: ChannelMode): [number, number] | null {
    let [low, high] = [Infinity, -Infinity];
    for (const { tile } of this.getDrawing(view, mode).placements) {
      if (!tile || (tile.log2min === 0 && tile.log2max === 0)) continue;
      low = Math.min(low, tile.log2min);
      high = Math.max(high, tile.log2max);
    }
    return low <= high ? [low, high] : null;
  }
}
