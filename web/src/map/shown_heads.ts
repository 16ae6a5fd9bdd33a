// What one map shows: a head, or that head (A) and another (B) in one picture.
import { HeadData } from "./head_data";
import type { MapData, Mode, Sharing } from "./map_data";
import { PairData } from "./pair_data";
import type { Scale } from "../paint/colour";
import type { Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import { ranged, type State } from "../state";

/** One pair: this query looks at this key. */
export interface Cell {
  query: number;
  key: number;
}

/** The other of two heads in one picture. */
export interface Shared extends Sharing {
  readonly meta: Meta;
  readonly layer: number;
  readonly head: number;
}

export class Showing {
  readonly one: HeadData;
  #other: HeadData | null = null;
  #pair: PairData | null = null;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {
    this.one = new HeadData(transport, onChange);
  }

  share(shared: Shared | null): void {
    if (!shared) {
      this.#other?.close();
      this.#other = this.#pair = null;
      return;
    }
    const { meta, layer, head, mode, names } = shared;
    this.#other ??= new HeadData(this.transport, this.onChange);
    const { name } = this.#other;
    if (name.trace !== meta.trace || name.layer !== layer || name.head !== head) this.#other.setHead(meta, layer, head);
    if (this.#pair?.sharing.mode !== mode || this.#pair.sharing.names.join() !== names.join()) this.#pair = new PairData({ mode, names }, this.one, this.#other);
  }

  get data(): MapData {
    return this.pair ?? this.one;
  }

  get pair(): PairData | null {
    return this.#pair?.fits ? this.#pair : null;
  }

  get ratio(): boolean {
    return this.pair?.sharing.mode === "ratio";
  }

  /** A ratio has no dots: it is one of means, or of maxima. */
  mode({ channel }: State): Mode {
    return this.ratio && channel === "both" ? "mean" : channel;
  }

  /** The colours the state asks for; a range left open follows the length of the text. */
  scale(state: State): Scale {
    const { colours, linear, range, bits } = ranged(state, this.one.layer?.keys ?? 1);
    return this.ratio ? { colours: "ratio", linear: false, range: [-bits, bits] } : { colours, linear, range };
  }

  /** The pair that is drawn in a cell: above the diagonal of a split picture, B's, turned over. */
  pairIn({ query, key }: Cell): Cell {
    return this.pair?.sharing.mode === "split" && key > query ? { query: key, key: query } : { query, key };
  }

  close(): void {
    this.one.close();
    this.#other?.close();
  }
}
