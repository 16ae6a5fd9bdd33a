// All that one map knows of two heads that it draws in one picture: A below and B above the diagonal, or A divided by B.
//
// In: the data of both heads, of matrices of one shape. Out: what one head's data gives, made of both. Strips and names are A's.
import type { Masking } from "../tiles/tile_cover";
import type { HeadData } from "./head_data";
import { MapData, said, type Mode, type Reading, type Sharing } from "./map_data";
import type { StripBlock } from "../paint/marginals";
import type { Range2, ZoomPlan } from "../geometry/zoom_plan";
import { PairTiles } from "../tiles/pair_tiles";
import { LEAST_BITS, ratioBetween } from "../tiles/ratio_codec";
import type { MarginalKind, Meta, Section, Side } from "../server/protocol";
import { inBits, raised } from "../format_numbers";
import type { TileSource } from "../tiles/tile_store";
import type { Viewport } from "../geometry/viewport";

export class PairData extends MapData {
  readonly tiles: TileSource;

  constructor(
    override readonly sharing: Sharing,
    readonly one: HeadData,
    readonly other: HeadData,
  ) {
    super();
    this.tiles = new PairTiles([one.tiles, other.tiles], this.#split);
  }

  get #split(): boolean {
    return this.sharing.mode === "split";
  }

  /** Between one head and the next they may be of two shapes: then there is nothing to draw. */
  get fits(): boolean {
    const [{ plan: one }, { plan: other }] = [this.one, this.other];
    return one.queries === other.queries && one.keys === other.keys;
  }

  get meta(): Meta | null {
    return this.one.meta;
  }

  get plan(): ZoomPlan {
    return this.one.plan;
  }

  get masking(): Masking {
    const [one, other] = [this.one.masking, this.other.masking];
    return { causal: !this.#split && (one.causal || other.causal), offset: one.offset };
  }

  get progress(): number | null {
    const known = [this.one.progress, this.other.progress].filter((progress) => progress !== null);
    return known.length > 0 ? Math.min(...known) : null;
  }

  reading(query: number, key: number, view: Viewport, mode: Mode): Reading | undefined {
    const [one, other] = this.#readings(query, key, (data, row, column) => data.reading(row, column, view, mode));
    if (this.#split) return one ?? other;
    return one && other && { value: ratioBetween(one.value, other.value), exact: one.exact && other.exact };
  }

  readout(query: number, key: number, view: Viewport, mode: Mode): string {
    if (this.#split)
      return key > query ? `B, turned over: ${this.other.readout(key, query, view, mode)}` : `A: ${this.one.readout(query, key, view, mode)}`;
    const pair = this.#readings(query, key, (data, row, column) => data.reading(row, column, view, mode));
    const stride = this.plan.stride(this.levelOf(view, mode));
    if (stride === 1) return beside(...pair);
    const channel = mode === "max" ? "max" : "mean";
    const bins = this.#readings(query, key, (data, row, column) => data.binReading(row, column, view, channel));
    return `${pair.every((reading) => reading?.exact) ? `this pair: ${beside(...pair)}\n` : ""}${channel} of ${stride}\u00d7${stride}: ${beside(...bins)}`;
  }

  wantCells(range: Range2): void {
    if (!this.#split || range.key[0] < range.query[1]) this.one.wantCells(range);
    if (!this.#split) this.other.wantCells(range);
    else if (range.key[1] > range.query[0] + 1) this.other.wantCells({ query: range.key, key: range.query });
  }

  strip(kind: MarginalKind, view: Viewport): StripBlock[] {
    return this.one.strip(kind, view);
  }

  sections(side: Side): readonly Section[] {
    return this.one.sections(side);
  }

  sinkShare(view: Viewport): number | null {
    return this.one.sinkShare(view);
  }

  askProgress(): void {
    this.one.askProgress();
    this.other.askProgress();
  }

  /** Of both heads; of a split picture, only of the head that is drawn there. */
  #readings(query: number, key: number, read: (data: HeadData, query: number, key: number) => Reading | undefined): [Reading | undefined, Reading | undefined] {
    if (!this.#split) return [read(this.one, query, key), read(this.other, query, key)];
    return key > query ? [undefined, read(this.other, key, query)] : [read(this.one, query, key), undefined];
  }
}

/** Two readings and what their ratio is. */
export function beside(one: Reading | undefined, other: Reading | undefined): string {
  const ratio = one && other && ratioBetween(one.value, other.value);
  if (ratio === undefined || ratio === null) return said(one?.value === null ? one : other);
  const bits = Number.isNaN(ratio) ? `both below 2${raised(String(LEAST_BITS))}` : `log2 ${inBits(ratio, 2)}`;
  return `A ${said(one)}, B ${said(other)}, ${bits}`;
}
