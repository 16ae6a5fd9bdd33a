// What one map shows: a head, or that head (A) and another (B) in one picture.
import { HeadData } from "./head_data";
import type { MapData, PairDisplay } from "./map_data";
import { PairData } from "./pair_data";
import type { ColourScale } from "../paint/colour";
import type { Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import { withRange, type ChannelMode, type State } from "../state";

/** A query and a key. */
export interface Cell {
  query: number;
  key: number;
}

/** The other of two heads in one picture. */
export interface SecondHead extends PairDisplay {
  readonly meta: Meta;
  readonly layer: number;
  readonly head: number;
}

export class ShownHeads {
  readonly first: HeadData;
  #second: HeadData | null = null;
  #pair: PairData | null = null;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {
    this.first = new HeadData(transport, onChange);
  }

  setSecond(shared: SecondHead | null): void {
    if (!shared) {
      this.#second?.close();
      this.#second = this.#pair = null;
      return;
    }
    const { meta, layer, head, mode, names } = shared;
    this.#second ??= new HeadData(this.transport, this.onChange);
    const { ref } = this.#second;
    if (ref.trace !== meta.trace || ref.layer !== layer || ref.head !== head) this.#second.setHead(meta, layer, head);
    if (this.#pair?.pairDisplay.mode !== mode || this.#pair.pairDisplay.names.join() !== names.join()) this.#pair = new PairData({ mode, names }, this.first, this.#second);
  }

  get data(): MapData {
    return this.pair ?? this.first;
  }

  get pair(): PairData | null {
    return this.#pair?.isSameShape ? this.#pair : null;
  }

  get isRatio(): boolean {
    return this.pair?.pairDisplay.mode === "ratio";
  }

  /** A ratio has no dots: it is one of means, or of maxima. */
  getMode({ channel }: State): ChannelMode {
    return this.isRatio && channel === "both" ? "mean" : channel;
  }

  /** The colours of the state; an open range depends on the length of the text. */
  getScale(state: State): ColourScale {
    const { colours, linear, range, bits } = withRange(state, this.first.layer?.keys ?? 1);
    return this.isRatio ? { colours: "ratio", linear: false, range: [-bits, bits] } : { colours, linear, range };
  }

  /** The pair that is drawn in a cell: above the diagonal of a split picture, B transposed. */
  getPair({ query, key }: Cell): Cell {
    return this.pair?.pairDisplay.mode === "split" && key > query ? { query: key, key: query } : { query, key };
  }

  close(): void {
    this.first.close();
    this.#second?.close();
  }
}
