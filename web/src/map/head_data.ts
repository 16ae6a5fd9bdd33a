// The data of one head for a map: tiles, exact cells, strips, section names and the server's progress.
//
// In: a head, then views. Out: what to draw, from loaded data; missing data is requested.
import { CellStore } from "../server/cell_store";
import { getChannels, type MaskInfo } from "../tiles/tile_cover";
import { FloatStore } from "../server/float_store";
import { EvictionStore, type EvictedKeys } from "../server/evicted_keys";
import type { ChannelMode, Eviction } from "../state";
import { formatReading, MapData, type Reading } from "./map_data";
import type { StripBlock } from "../paint/marginals";
import { TILE_SIZE, ZoomPlan, type TokenRanges } from "../geometry/zoom_plan";
import { paths, type Channel, type HeadRef, type Layer, type MarginalKind, type Meta, type Section, type Side, type Status } from "../server/protocol";
import { LatestRequest } from "../server/requests";
import { readTile } from "../server/tile_codec";
import type { PictureCache } from "../tiles/pictures";
import { TileStore, type LoadedTile } from "../tiles/tile_store";
import { formatTitle } from "../paint/token_text";
import type { Transport } from "../server/transport";
import { getVisibleRange, type Viewport } from "../geometry/viewport";

/** In the header of a tile. */
const MEAN = 0;
const PROGRESS_POLL_MILLISECONDS = 1000;
/** Tiles, which take the server longer, are requested after the preview, or after this time. */
const PREVIEW_WAIT_MILLISECONDS = 400;
const FRAMES_MILLISECONDS = 34;

export class HeadData extends MapData {
  readonly tiles: TileStore;
  readonly cells: CellStore;
  readonly floats: FloatStore;
  readonly evictions: EvictionStore;
  meta: Meta | null = null;
  ref: HeadRef = { trace: "", layer: 0, head: 0 };
  layer: Layer | null = null;
  plan = new ZoomPlan(1, 1);
  /** Null while not known; shown only while partial tiles are. */
  progress: number | null = null;
  override preview: LoadedTile | null = null;
  readonly #sections = new Map<string, Section[]>();
  readonly #strips = new Map<MarginalKind, StripBlock[]>();
  #poll: ReturnType<typeof setTimeout> | undefined;
  #closed = false;
  readonly #previewRequest = new LatestRequest();

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
    readonly pictures: PictureCache,
  ) {
    super();
    this.tiles = new TileStore(transport, onChange);
    this.cells = new CellStore(transport, onChange);
    this.floats = new FloatStore(transport, onChange);
    this.evictions = new EvictionStore(transport, onChange);
  }

  setHead(meta: Meta, layer: number, head: number): void {
    const info = meta.layers[layer];
    if (!info) throw new RangeError(`Expected a layer below ${meta.layers.length}, got ${layer}.`);
    this.meta = meta;
    this.layer = info;
    this.ref = { trace: meta.trace, layer, head };
    this.plan = new ZoomPlan(info.queries, info.keys);
    this.progress = null;
    this.#strips.clear();
    clearTimeout(this.#poll);
    this.#poll = undefined;
    this.tiles.setHead(this.ref);
    this.#loadPreview(this.ref);
    this.cells.setHead(this.ref, info.queries, info.keys);
  }

  close(): void {
    this.#closed = true;
    this.#previewRequest.cancel();
    clearTimeout(this.#poll);
    this.tiles.close();
    this.cells.close();
    this.floats.close();
    this.evictions.close();
  }

  get masking(): MaskInfo {
    return { causal: this.layer?.causal ?? false, offset: this.layer?.offset ?? 0, window: this.layer?.window ?? null };
  }

  /** The strip's blocks in view; while some are loading, those drawn before. */
  getStrip(kind: MarginalKind, view: Viewport): StripBlock[] {
    const { trace, layer, head } = this.ref;
    const z = this.chooseLevel(view, "mean");
    const stride = this.plan.getStride(z);
    const range = getVisibleRange(view);
    const [from, to] = kind === "received" ? range.key : range.query;
    const blocks: StripBlock[] = [];
    let whole = true;
    for (let block = Math.floor(from / (TILE_SIZE * stride)); block * TILE_SIZE * stride < to; block++) {
      const values = this.floats.get(paths.marginal(trace, layer, head, kind, z, block));
      if (values) blocks.push({ block, stride, values });
      else whole = false;
    }
    if (whole) this.#strips.set(kind, blocks);
    return whole ? blocks : (this.#strips.get(kind) ?? blocks);
  }

  /** Names along an axis, sorted by importance; empty until they are loaded. */
  getSections(side: Side): readonly Section[] {
    const { trace, layer } = this.ref;
    if (!this.layer?.has_texts) return [];
    const path = paths.sections(trace, layer, side);
    const held = this.#sections.get(path);
    if (held) return held;
    this.#sections.set(path, []);
    this.transport.json<Section[]>(path).then(
      (sections) => {
        const named = sections.map(([position, importance, text]): Section => [position, importance, formatTitle(text)]);
        this.#sections.set(path, named.sort((one, other) => other[1] - one[1] || one[0] - other[0]));
        this.onChange();
      },
      // The axis still has numbers.
      () => undefined,
    );
    return [];
  }

  /** The mean share of key 0 over the rows in view; null until known. */
  getSinkShare(view: Viewport): number | null {
    const { trace, layer, head } = this.ref;
    const column = this.floats.get(paths.column(trace, layer, head, 0));
    if (!column) return null;
    const stride = 2 ** column.z;
    const [from, to] = getVisibleRange(view).query;
    let [sum, count] = [0, 0];
    for (let bin = Math.floor(from / stride); bin * stride < to && bin < column.columns; bin++) {
      const value = column.values[bin] ?? NaN;
      if (Number.isNaN(value)) continue;
      sum += value;
      count++;
    }
    return count > 0 ? sum / count : null;
  }

  override getEvicted(eviction: Eviction | null): EvictedKeys | null {
    return this.evictions.get(this.ref, this.layer, eviction);
  }

  getReading(query: number, key: number, view: Viewport, mode: ChannelMode): Reading | undefined {
    const exact = this.cells.get(query, key);
    if (exact !== undefined) return { value: Number.isNaN(exact) ? null : exact, exact: true };
    if (this.masking.causal && key > query + this.masking.offset) return { value: null, exact: true };
    return this.getBinReading(query, key, view, this.#chooseBins(view, mode).channel);
  }

  describeCell(query: number, key: number, view: Viewport, mode: ChannelMode): string {
    const { stride, channel } = this.#chooseBins(view, mode);
    const reading = this.getReading(query, key, view, mode);
    if (stride === 1) return formatReading(reading);
    const describeBin = (of: Channel): string => `${of} ${formatReading(this.getBinReading(query, key, view, of))}`;
    const bins = mode === "both" ? `${describeBin("mean")}, ${describeBin("max")}` : describeBin(mode);
    if (reading?.exact && reading.value === null && this.getBinReading(query, key, view, channel)?.value === null) return "masked";
    return `${reading?.exact ? `this pair ${formatReading(reading)}; ` : ""}${stride}\u00d7${stride}: ${bins}`;
  }

  requestCells(range: TokenRanges): void {
    this.cells.request(range);
  }

  pollProgress(): void {
    if (this.#poll !== undefined || this.#closed) return;
    this.#poll = setTimeout(() => void this.#loadProgress(this.ref), this.progress === null ? 0 : PROGRESS_POLL_MILLISECONDS);
  }

  /** From the pictures that are loaded, or by a request of its own. */
  #loadPreview({ trace, layer, head }: HeadRef): void {
    this.preview = this.pictures.get(trace, layer, head);
    this.#previewRequest.cancel();
    // The heads view has loaded the largest weights, which are brighter: they are shown until the means are here.
    const path = paths.preview(trace, layer, head, "mean");
    if (this.preview?.channel === MEAN || this.transport.hasResponse?.(path) === false) return this.tiles.release();
    this.tiles.hold(PREVIEW_WAIT_MILLISECONDS);
    void this.#previewRequest.run(
      (signal) => this.transport.bytes(path, signal),
      (body) => {
        if (!body) return this.tiles.release();
        const tile = readTile(body);
        this.preview = { ...tile, hasMasked: tile.codes.includes(0) };
        this.onChange();
        // Once it is drawn.
        setTimeout(() => this.tiles.release(), FRAMES_MILLISECONDS);
      },
      () => this.tiles.release(),
    );
  }

  /** The size and channel of bins in this view. */
  #chooseBins(view: Viewport, mode: ChannelMode): { stride: number; channel: Channel } {
    const stride = this.plan.getStride(this.chooseLevel(view, mode));
    return { stride, channel: getChannels(stride, mode)[0] ?? "mean" };
  }

  async #loadProgress({ trace, layer, head }: HeadRef): Promise<void> {
    let status: Status | null = null;
    try {
      status = await this.transport.json<Status>(paths.status(trace, layer, head));
    } catch {
      // Requested again with the next frame that shows a partial tile.
    }
    if (this.#closed || this.ref.trace !== trace || this.ref.layer !== layer || this.ref.head !== head) return;
    this.#poll = undefined;
    this.progress = status?.progress ?? this.progress ?? 0;
    if (status?.coarse === "ready") this.tiles.refreshPartial();
    this.onChange();
  }
}
