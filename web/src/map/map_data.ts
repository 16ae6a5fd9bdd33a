// What a picture knows of what it shows: one head, or two in one picture. What both do the same with their tiles is done here.
//
// In: views. Out: what to draw, at once, from what is held; what is missing is asked for. Does not draw.
import { valueOf } from "../server/tile_codec";
import { channelsAt, cover, wantedTiles, type Masking, type Piece } from "../tiles/tile_cover";
import type { StripBlock } from "../paint/marginals";
import { ancestor, TILE, type Range2, type TileAddress, type ZoomPlan } from "../geometry/zoom_plan";
import type { Channel, MarginalKind, Meta, Section, Side } from "../server/protocol";
import { plain } from "../format_numbers";
import { spikesOf, type Spike } from "../tiles/spikes";
import { strongestBins } from "../tiles/strongest_bins";
import type { Held, HeldTile, TileSource } from "../tiles/tile_store";
import { visibleRange, type Viewport } from "../geometry/viewport";

export type Mode = "both" | "max" | "mean";

/** What is known of one pair: null is masked; exact is false for a value read from a tile ("~"). */
export interface Reading {
  value: number | null;
  exact: boolean;
}

/** A reading as people read it. */
export function said(reading: Reading | undefined): string {
  if (!reading) return "loading";
  if (reading.value === null) return "masked";
  return (reading.exact ? "" : "~") + plain(reading.value);
}

/** A link between spans of tokens, read off the tiles. */
export interface Span {
  query: [number, number];
  key: [number, number];
  value: number;
}

export interface Drawing {
  z: number;
  stride: number;
  channel: Channel;
  pieces: Piece[];
}

/** How two heads share a picture, and what they are called. */
export interface Sharing {
  readonly mode: "split" | "ratio";
  readonly names: readonly [one: string, other: string];
}

export abstract class MapData {
  /** Null for a head alone. */
  readonly sharing: Sharing | null = null;
  abstract readonly meta: Meta | null;
  abstract readonly plan: ZoomPlan;
  abstract readonly masking: Masking;
  /** How far the server is with building; null while it has not said. */
  abstract readonly progress: number | null;
  abstract readonly tiles: TileSource;
  /** The value of a pair: exact if fetched, else that of the finest tile held over it. */
  abstract reading(query: number, key: number, view: Viewport, mode: Mode): Reading | undefined;
  /** All that is known of the pair under the pointer. */
  abstract readout(query: number, key: number, view: Viewport, mode: Mode): string;
  abstract wantCells(range: Range2): void;
  abstract strip(kind: MarginalKind, view: Viewport): StripBlock[];
  abstract sections(side: Side): readonly Section[];
  abstract sinkShare(view: Viewport): number | null;
  abstract askProgress(): void;

  /** The level that suits the zoom; where a saved page lacks some of it, the next that it holds: a picture is of one level. */
  levelOf(view: Viewport, mode: Mode): number {
    const range = visibleRange(view);
    const lacks = (tile: TileAddress): boolean =>
      !(this.masking.causal && this.plan.aboveDiagonal(tile, this.masking.offset)) &&
      channelsAt(this.plan.stride(tile.z), mode).some((channel) => this.tiles.lacks(tile, channel));
    let z = this.plan.levelFor(view.zoom);
    while (z > 0 && this.plan.covering(z, range).some(lacks)) z--;
    return z;
  }

  want(view: Viewport, mode: Mode, atOnce: boolean): void {
    this.tiles.want(wantedTiles(this.plan, this.levelOf(view, mode), visibleRange(view), this.masking, mode), atOnce);
  }

  drawing(view: Viewport, mode: Mode): Drawing {
    const z = this.levelOf(view, mode);
    const stride = this.plan.stride(z);
    const channel = channelsAt(stride, mode)[0] ?? "mean";
    // Each level has its own channel: only the exact one serves a single channel.
    const lookup = (address: TileAddress): Held | undefined => this.tiles.get(address, channelsAt(this.plan.stride(address.z), mode)[0] ?? "mean");
    const pieces = cover(this.plan, z, visibleRange(view), this.masking, lookup);
    if (pieces.some((piece) => piece.tile?.partial)) this.askProgress();
    return { z, stride, channel, pieces };
  }

  /** Dots of the drawn tiles whose second channel is there. */
  spikes(pieces: readonly Piece[]): { piece: Piece; spikes: Spike[] }[] {
    const result: { piece: Piece; spikes: Spike[] }[] = [];
    for (const piece of pieces) {
      if (!piece.tile || piece.state !== "drawn" || piece.stride === 1) continue;
      const max = this.tiles.get(piece.address, "max");
      if (typeof max === "object" && max.codes.length === piece.tile.codes.length) result.push({ piece, spikes: spikesOf(piece.tile, max) });
    }
    return result;
  }

  /** The whole picture, for the minimap. */
  whole(mode: Mode): HeldTile | null {
    const held = this.tiles.get({ z: 0, y: 0, x: 0 }, channelsAt(this.plan.stride(0), mode)[0] ?? "mean");
    return typeof held === "object" ? held : null;
  }

  /** The value of the bin drawn over a pair. */
  binReading(query: number, key: number, view: Viewport, channel: Channel): Reading | undefined {
    const deepest = this.levelOf(view, channel);
    const span = TILE * this.plan.stride(deepest);
    const target = { z: deepest, y: Math.floor(query / span), x: Math.floor(key / span) };
    for (let levels = 0; levels <= deepest; levels++) {
      const address = ancestor(target, levels);
      const stride = this.plan.stride(address.z);
      const held = this.tiles.get(address, stride === 1 ? "mean" : channel);
      if (held === "empty") return { value: null, exact: true };
      if (typeof held !== "object") continue;
      const row = Math.floor(query / stride) - address.y * TILE;
      const column = Math.floor(key / stride) - address.x * TILE;
      const code = held.codes[row * held.columns + column] ?? 0;
      return { value: code === 0 ? null : valueOf(code), exact: false };
    }
    return undefined;
  }

  /** The strongest bins in view by their largest weight, as far as it is held. */
  strongest(view: Viewport, mode: Mode, count: number): Span[] {
    const { pieces } = this.drawing(view, mode);
    const range = visibleRange(view);
    const best: Span[] = [];
    for (const { tile, address, stride } of pieces) {
      if (!tile) continue;
      const max = stride === 1 ? tile : this.tiles.get(address, "max");
      const from = typeof max === "object" ? max : tile;
      const bins = ([start, end]: readonly [number, number], block: number): [number, number] => [
        Math.floor(start / stride) - block * TILE,
        Math.ceil(end / stride) - block * TILE,
      ];
      const window = { rows: bins(range.query, address.y), columns: bins(range.key, address.x) };
      for (const { row, column, value } of strongestBins(from, window, count)) {
        const [query, key] = [(address.y * TILE + row) * stride, (address.x * TILE + column) * stride];
        best.push({ query: [query, Math.min(query + stride, this.plan.queries)], key: [key, Math.min(key + stride, this.plan.keys)], value });
      }
      best.sort((one, other) => other.value - one.value);
      best.length = Math.min(best.length, count);
    }
    return best;
  }

  /** Bits of the smallest and largest weight in the drawn tiles. */
  valueRange(view: Viewport, mode: Mode): [number, number] | null {
    let [low, high] = [Infinity, -Infinity];
    for (const { tile } of this.drawing(view, mode).pieces) {
      if (!tile || (tile.log2min === 0 && tile.log2max === 0)) continue;
      low = Math.min(low, tile.log2min);
      high = Math.max(high, tile.log2max);
    }
    return low <= high ? [low, high] : null;
  }
}
