// What one map shows: a head, or that head (A) and another (B) in one picture.
import { HeadData } from "./head_data";
import type { MapData, PairDisplay } from "./map_data";
import { PairData } from "./pair_data";
import { chooseScale, type ColourScale } from "../paint/colour";
import { createTileColours, findMiddleQuery } from "../paint/tile_colours";
import { countPictureKeys, type PictureCache } from "../tiles/pictures";
import type { TileColours } from "../tiles/tile_images";
import type { Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import type { ChannelMode, State } from "../state";

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
    readonly pictures: PictureCache,
  ) {
    this.first = new HeadData(transport, onChange, pictures);
  }

  setSecond(shared: SecondHead | null): void {
    if (!shared) {
      this.#second?.close();
      this.#second = this.#pair = null;
      return;
    }
    const { meta, layer, head, mode, names } = shared;
    this.#second ??= new HeadData(this.transport, this.onChange, this.pictures);
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

  /** The colours of the state where bins have this side; an open range depends on the length of the text. */
  getScale(state: State, stride: number): ColourScale {
    if (this.isRatio) return { colours: "ratio", kind: "log", range: [-state.bits, state.bits] };
    return chooseScale(state, stride, this.first.layer?.keys ?? 1);
  }

  /** How tiles are coloured on this scale. */
  getTileColours(scale: ColourScale): TileColours {
    const { data } = this;
    const isSplit = data.pairDisplay?.mode === "split";
    return createTileColours(scale, (tile, side, index) => data.countKeys(findMiddleQuery(tile, side, index, data.plan.getStride(tile.z))), isSplit);
  }

  /** How the preview of the first head is coloured on this scale. */
  getPreviewColours(scale: ColourScale): TileColours {
    const { layer } = this.first;
    return createTileColours(scale, (tile, _side, row) => (layer ? countPictureKeys(layer, tile, row) : 1));
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
