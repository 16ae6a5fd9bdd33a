// Coloured pictures of tiles, one small canvas each, made when first drawn and recoloured when the colours change.
//
// Memory: at most 160 canvases of 256 x 256; the one least recently drawn goes first.
import type { LoadedTile } from "./tile_store";

const MAX_IMAGES = 160;

interface TileImage {
  canvas: OffscreenCanvas;
  pixels: Uint32Array;
  image: ImageData;
  version: number;
}

export class TileImages {
  readonly #images = new Map<LoadedTile, TileImage>();
  #lookup: Uint32Array = new Uint32Array(256);
  #version = 0;

  /** New colours: pictures in view are recoloured as they are drawn. */
  setLookup(lookup: Uint32Array): void {
    this.#lookup = lookup;
    this.#version++;
  }

  getImage(tile: LoadedTile): OffscreenCanvas {
    let picture = this.#images.get(tile);
    if (picture) this.#images.delete(tile);
    else picture = this.#createImage(tile);
    this.#images.set(tile, picture);
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

  #createImage(tile: LoadedTile): TileImage {
    const oldest = this.#images.keys().next().value;
    if (this.#images.size >= MAX_IMAGES && oldest) this.#images.delete(oldest);
    const image = new ImageData(tile.columns, tile.rows);
    return { canvas: new OffscreenCanvas(tile.columns, tile.rows), image, pixels: new Uint32Array(image.data.buffer), version: -1 };
  }
}
