// All that one map knows of one head: tiles, exact cells, strips, section names and the server's progress.
//
// In: a head's name, then views. Out: what to draw, at once, from what is held; what is missing is asked for. Does not draw.
import { Cells } from "../server/cell_store";
import { channelsAt, type Masking } from "../tiles/tile_cover";
import { FloatStore } from "../server/float_store";
import { MapData, said, type Mode, type Reading } from "./map_data";
import type { StripBlock } from "../paint/marginals";
import { TILE, ZoomPlan, type Range2 } from "../geometry/zoom_plan";
import { paths, type Channel, type Layer, type MarginalKind, type Meta, type Section, type Side, type Status } from "../server/protocol";
import { TileStore, type HeadName } from "../tiles/tile_store";
import { title } from "../paint/token_text";
import type { Transport } from "../server/transport";
import { visibleRange, type Viewport } from "../geometry/viewport";

const ASK_PROGRESS_MILLISECONDS = 1000;

export class HeadData extends MapData {
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
    super();
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

  /** The strip's blocks in view; while some are on their way, those drawn before. */
  strip(kind: MarginalKind, view: Viewport): StripBlock[] {
    const { trace, layer, head } = this.name;
    const z = this.levelOf(view, "mean");
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

  reading(query: number, key: number, view: Viewport, mode: Mode): Reading | undefined {
    const exact = this.cells.get(query, key);
    if (exact !== undefined) return { value: Number.isNaN(exact) ? null : exact, exact: true };
    if (this.masking.causal && key > query + this.masking.offset) return { value: null, exact: true };
    return this.binReading(query, key, view, this.#seen(view, mode).channel);
  }

  readout(query: number, key: number, view: Viewport, mode: Mode): string {
    const { stride, channel } = this.#seen(view, mode);
    const reading = this.reading(query, key, view, mode);
    if (stride === 1) return said(reading);
    const bin = (of: Channel): string => `${of} ${said(this.binReading(query, key, view, of))}`;
    const bins = mode === "both" ? `${bin("mean")}, ${bin("max")}` : bin(mode);
    if (reading?.exact && reading.value === null && this.binReading(query, key, view, channel)?.value === null) return "masked";
    return `${reading?.exact ? `this pair ${said(reading)}; ` : ""}${stride}\u00d7${stride}: ${bins}`;
  }

  wantCells(range: Range2): void {
    this.cells.want(range);
  }

  askProgress(): void {
    if (this.#poll !== undefined || this.#closed) return;
    this.#poll = setTimeout(() => void this.#progress(this.name), this.progress === null ? 0 : ASK_PROGRESS_MILLISECONDS);
  }

  /** What a bin is in this view. */
  #seen(view: Viewport, mode: Mode): { stride: number; channel: Channel } {
    const stride = this.plan.stride(this.levelOf(view, mode));
    return { stride, channel: channelsAt(stride, mode)[0] ?? "mean" };
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
