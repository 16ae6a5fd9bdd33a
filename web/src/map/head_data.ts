// All that one map knows of one head: tiles, exact cells, strips, section names and the server's progress.
//
// In: a head's name, then views. Out: what to draw, at once, from what is held; what is missing is asked for. Does not draw.
import { Cells } from "../server/cells";
import { valueOf } from "../server/codec";
import { channelsAt, cover, wantedTiles, type Masking, type Piece } from "./cover";
import { FloatStore } from "../server/floats";
import type { StripBlock } from "../paint/marginals";
import { ancestor, TILE, ZoomPlan, type TileAddress } from "./plan";
import { paths, type Channel, type Layer, type MarginalKind, type Meta, type Section, type Side, type Status } from "../server/protocol";
import { spikesOf, type Spike } from "./spikes";
import { strongestBins } from "./strongest_bins";
import { TileStore, type HeadName, type HeldTile } from "./tiles";
import { title } from "../paint/token_text";
import type { Transport } from "../server/transport";
import { visibleRange, type Viewport } from "./viewport";

export type Mode = "both" | "max" | "mean";

const ASK_PROGRESS_MILLISECONDS = 1000;

/** What is known of one pair: null is masked; exact is false for a value read from a tile ("~"). */
export interface Reading {
  value: number | null;
  exact: boolean;
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

export class HeadData {
  readonly tiles: TileStore;
  readonly cells: Cells;
  readonly floats: FloatStore;
  meta: Meta | null = null;
  name: HeadName = { trace: "", layer: 0, head: 0 };
  layer: Layer | null = null;
  plan = new ZoomPlan(1, 1);
  /** null while the server has not said; shown only while partial tiles are. */
  progress: number | null = null;
  readonly #sections = new Map<string, Section[]>();
  readonly #strips = new Map<MarginalKind, StripBlock[]>();
  #poll: ReturnType<typeof setTimeout> | undefined;
  #closed = false;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {
    this.tiles = new TileStore(transport, onChange);
    this.cells = new Cells(transport, onChange);
    this.floats = new FloatStore(transport, onChange);
  }

  setHead(meta: Meta, layer: number, head: number): void {
    const about = meta.layers[layer];
    if (!about) throw new RangeError(`Layer ${layer} was asked of a trace with ${meta.layers.length} layers.`);
    this.meta = meta;
    this.layer = about;
    this.name = { trace: meta.trace, layer, head };
    this.plan = new ZoomPlan(about.queries, about.keys);
    this.progress = null;
    this.#strips.clear();
    clearTimeout(this.#poll);
    this.#poll = undefined;
    this.tiles.setHead(this.name);
    this.cells.setHead(this.name, about.queries, about.keys);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#poll);
    this.tiles.close();
    this.cells.close();
    this.floats.close();
  }

  get masking(): Masking {
    return { causal: this.layer?.causal ?? false, offset: this.layer?.offset ?? 0 };
  }

  want(view: Viewport, mode: Mode, atOnce: boolean): void {
    this.tiles.want(wantedTiles(this.plan, this.plan.levelFor(view.zoom), visibleRange(view), this.masking, mode), atOnce);
  }

  drawing(view: Viewport, mode: Mode): Drawing {
    const z = this.plan.levelFor(view.zoom);
    const stride = this.plan.stride(z);
    const channel = channelsAt(stride, mode)[0] ?? "mean";
    // Each level has its own channel: only the exact one serves a single channel.
    const lookup = (address: TileAddress): ReturnType<TileStore["get"]> =>
      this.tiles.get(address, channelsAt(this.plan.stride(address.z), mode)[0] ?? "mean");
    const pieces = cover(this.plan, z, visibleRange(view), this.masking, lookup);
    if (pieces.some((piece) => piece.tile?.partial)) this.#askProgress();
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

  /** The strip's blocks in view; while some are on their way, those drawn before. */
  strip(kind: MarginalKind, view: Viewport): StripBlock[] {
    const { trace, layer, head } = this.name;
    const z = this.plan.levelFor(view.zoom);
    const stride = this.plan.stride(z);
    const range = visibleRange(view);
    const [from, to] = kind === "received" ? range.key : range.query;
    const blocks: StripBlock[] = [];
    let whole = true;
    for (let block = Math.floor(from / (TILE * stride)); block * TILE * stride < to; block++) {
      const values = this.floats.get(paths.marginal(trace, layer, head, kind, z, block));
      if (values) blocks.push({ block, stride, values });
      else whole = false;
    }
    if (whole) this.#strips.set(kind, blocks);
    return whole ? blocks : (this.#strips.get(kind) ?? blocks);
  }

  /** Names along an axis, the most important first; empty until they have come. */
  sections(side: Side): readonly Section[] {
    const { trace, layer } = this.name;
    if (!this.layer?.texts) return [];
    const path = paths.sections(trace, layer, side);
    const held = this.#sections.get(path);
    if (held) return held;
    this.#sections.set(path, []);
    this.transport.json<Section[]>(path).then(
      (sections) => {
        const named = sections.map(([position, importance, text]): Section => [position, importance, title(text)]);
        this.#sections.set(path, named.sort((one, other) => other[1] - one[1] || one[0] - other[0]));
        this.onChange();
      },
      // Numbers still name the positions.
      () => undefined,
    );
    return [];
  }

  /** The mean share of key 0 over the rows in view; null until known. */
  sinkShare(view: Viewport): number | null {
    const { trace, layer, head } = this.name;
    const column = this.floats.get(paths.column(trace, layer, head, 0));
    if (!column) return null;
    const stride = 2 ** column.z;
    const [from, to] = visibleRange(view).query;
    let [sum, count] = [0, 0];
    for (let bin = Math.floor(from / stride); bin * stride < to && bin < column.columns; bin++) {
      const value = column.values[bin] ?? NaN;
      if (Number.isNaN(value)) continue;
      sum += value;
      count++;
    }
    return count > 0 ? sum / count : null;
  }

  /** The value of a pair: exact if fetched, else that of the finest tile held over it. */
  reading(query: number, key: number, view: Viewport, mode: Mode): Reading | undefined {
    const exact = this.cells.get(query, key);
    if (exact !== undefined) return { value: Number.isNaN(exact) ? null : exact, exact: true };
    if (this.masking.causal && key > query + this.masking.offset) return { value: null, exact: true };
    return this.binReading(query, key, view, channelsAt(this.plan.stride(this.plan.levelFor(view.zoom)), mode)[0] ?? "mean");
  }

  /** The value of the bin drawn over a pair. */
  binReading(query: number, key: number, view: Viewport, channel: Channel): Reading | undefined {
    const deepest = this.plan.levelFor(view.zoom);
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

  #askProgress(): void {
    if (this.#poll !== undefined || this.#closed) return;
    this.#poll = setTimeout(() => void this.#progress(this.name), this.progress === null ? 0 : ASK_PROGRESS_MILLISECONDS);
  }

  async #progress({ trace, layer, head }: HeadName): Promise<void> {
    let status: Status | null = null;
    try {
      status = await this.transport.json<Status>(paths.status(trace, layer, head));
    } catch {
      // Asked again with the next frame that shows a partial tile.
    }
    if (this.#closed || this.name.trace !== trace || this.name.layer !== layer || this.name.head !== head) return;
    this.#poll = undefined;
    this.progress = status?.progress ?? this.progress ?? 0;
    if (status?.coarse === "ready") this.tiles.refreshPartial();
    this.onChange();
  }
}
