// Coloured pictures of tiles, one small canvas each, made when first drawn and recoloured when the colours change.
//
// Memory: at most 160 canvases of 256 x 256; the one least recently drawn goes first.
import { LruCache } from "../lru_cache";
import type { LoadedTile } from "./tile_store";

const MAX_IMAGES = 160;

interface TileImage {
  canvas: OffscreenCanvas;
  pixels: Uint32Array;
  image: ImageData;
  version: number;
}

export class TileImages {
  readonly #images = new LruCache<LoadedTile, TileImage>(MAX_IMAGES);
  #lookup: Uint32Array = new Uint32Array(256);
  #version = 0;

  /** New colours: pictures in view are recoloured as they are drawn. */
  setLookup(lookup: Uint32Array): void {
    this.#lookup = lookup;
    this.#version++;
  }

  getImage(tile: LoadedTile): OffscreenCanvas {
    let picture = this.#images.get(tile);
    if (!picture) this.#images.set(tile, (picture = createImage(tile)));
    if (picture.version !== this.#version) {
      const { codes } = tile;
      const { pixels } = picture;
      const lookup = this.#lookup;
      for (let index = 0; index < codes.length; index++) pixels[index] = lookup[codes[index] as number] as number;
      picture.canvas.getContext("2d")?.putImageData(picture.image, 0, 0);
      picture.version = this.#version;
    }
    return picture.canvas;
  }

  clear(): void {
    this.#images.clear();
  }
}

function createImage({ columns, rows }: LoadedTile): TileImage {
  const image = new ImageData(columns, rows);
  return { canvas: new OffscreenCanvas(columns, rows), image, pixels: new Uint32Array(image.data.buffer), version: -1 };
}
