// The data of two heads in one picture: A below and B above the diagonal, or A divided by B.
//
// In: the data of both heads, of matrices of one shape. Out: data like that of one head. Strips and names are A's.
import type { MaskInfo } from "../tiles/tile_cover";
import type { HeadData } from "./head_data";
import type { ChannelMode } from "../state";
import { formatReading, MapData, type PairDisplay, type Reading } from "./map_data";
import type { StripBlock } from "../paint/marginals";
import type { TokenRanges, ZoomPlan } from "../geometry/zoom_plan";
import { PairTiles } from "../tiles/pair_tiles";
import { computeRatio, MIN_BITS } from "../tiles/ratio_codec";
import type { MarginalKind, Meta, Section, Side } from "../server/protocol";
import { formatLog2Ratio, toSuperscript } from "../format_numbers";
import type { TileSource } from "../tiles/tile_store";
import type { Viewport } from "../geometry/viewport";

export class PairData extends MapData {
  readonly tiles: TileSource;

  constructor(
    override readonly pairDisplay: PairDisplay,
    readonly one: HeadData,
    readonly other: HeadData,
  ) {
    super();
    this.tiles = new PairTiles([one.tiles, other.tiles], this.#isSplit);
  }

  get #isSplit(): boolean {
    return this.pairDisplay.mode === "split";
  }

  /** While heads change, their shapes may differ; then nothing can be drawn. */
  get isSameShape(): boolean {
    const [{ plan: one }, { plan: other }] = [this.one, this.other];
    return one.queries === other.queries && one.keys === other.keys;
  }

  get meta(): Meta | null {
    return this.one.meta;
  }

  get plan(): ZoomPlan {
    return this.one.plan;
  }

  get masking(): MaskInfo {
    const [one, other] = [this.one.masking, this.other.masking];
    return { causal: !this.#isSplit && (one.causal || other.causal), offset: one.offset, window: one.window };
  }

  protected override get keyMask(): MaskInfo {
    return this.one.masking;
  }

  get progress(): number | null {
    const known = [this.one.progress, this.other.progress].filter((progress) => progress !== null);
    return known.length > 0 ? Math.min(...known) : null;
  }

  getReading(query: number, key: number, view: Viewport, mode: ChannelMode): Reading | undefined {
    const [one, other] = this.#readBoth(query, key, (data, row, column) => data.getReading(row, column, view, mode));
    if (this.#isSplit) return one ?? other;
    return one && other && { value: computeRatio(one.value, other.value), exact: one.exact && other.exact };
  }

  describeCell(query: number, key: number, view: Viewport, mode: ChannelMode): string {
    if (this.#isSplit)
      return key > query ? `B, turned over: ${this.other.describeCell(key, query, view, mode)}` : `A: ${this.one.describeCell(query, key, view, mode)}`;
    const pair = this.#readBoth(query, key, (data, row, column) => data.getReading(row, column, view, mode));
    const stride = this.plan.getStride(this.chooseLevel(view, mode));
    if (stride === 1) return formatPair(...pair);
    const channel = mode === "max" ? "max" : "mean";
    const bins = this.#readBoth(query, key, (data, row, column) => data.getBinReading(row, column, view, channel));
    return `${pair.every((reading) => reading?.exact) ? `this pair: ${formatPair(...pair)}\n` : ""}${channel} of ${stride}\u00d7${stride}: ${formatPair(...bins)}`;
  }

  requestCells(range: TokenRanges): void {
    if (!this.#isSplit || range.key[0] < range.query[1]) this.one.requestCells(range);
    if (!this.#isSplit) this.other.requestCells(range);
    else if (range.key[1] > range.query[0] + 1) this.other.requestCells({ query: range.key, key: range.query });
  }

  getStrip(kind: MarginalKind, view: Viewport): StripBlock[] {
    return this.one.getStrip(kind, view);
  }

  getSections(side: Side): readonly Section[] {
    return this.one.getSections(side);
  }

  getSinkShare(view: Viewport): number | null {
    return this.one.getSinkShare(view);
  }

  pollProgress(): void {
    this.one.pollProgress();
    this.other.pollProgress();
  }

  /** Of both heads; of a split picture, only of the head that is drawn there. */
  #readBoth(query: number, key: number, read: (data: HeadData, query: number, key: number) => Reading | undefined): [Reading | undefined, Reading | undefined] {
    if (!this.#isSplit) return [read(this.one, query, key), read(this.other, query, key)];
    return key > query ? [undefined, read(this.other, key, query)] : [read(this.one, query, key), undefined];
  }
}

/** Two readings and their ratio. */
export function formatPair(one: Reading | undefined, other: Reading | undefined): string {
  const ratio = one && other && computeRatio(one.value, other.value);
  if (ratio === undefined || ratio === null) return formatReading(one?.value === null ? one : other);
  const bits = Number.isNaN(ratio) ? `both below 2${toSuperscript(String(MIN_BITS))}` : `log2 ${formatLog2Ratio(ratio, 2)}`;
  return `A ${formatReading(one)}, B ${formatReading(other)}, ${bits}`;
}
