// Coloured pictures of tiles, one small canvas each, made when first drawn and recoloured when the colours change.
//
// Memory: at most 160 canvases of 256 x 256; the one least recently drawn goes first.
import type { HeldTile } from "./tile_store";

const MOST = 160;

interface Picture {
  canvas: OffscreenCanvas;
  pixels: Uint32Array;
  image: ImageData;
  version: number;
}

export class Pictures {
  readonly #pictures = new Map<HeldTile, Picture>();
  #lookup: Uint32Array = new Uint32Array(256);
  #version = 0;

  /** New colours: pictures in view are recoloured as they are drawn. */
  setLookup(lookup: Uint32Array): void {
    this.#lookup = lookup;
    this.#version++;
  }

  of(tile: HeldTile): OffscreenCanvas {
    let picture = this.#pictures.get(tile);
    if (picture) this.#pictures.delete(tile);
    else picture = this.#blank(tile);
    this.#pictures.set(tile, picture);
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
    this.#pictures.clear();
  }

  #blank(tile: HeldTile): Picture {
    const oldest = this.#pictures.keys().next().value;
    if (this.#pictures.size >= MOST && oldest) this.#pictures.delete(oldest);
    const image = new ImageData(tile.columns, tile.rows);
    return { canvas: new OffscreenCanvas(tile.columns, tile.rows), image, pixels: new Uint32Array(image.data.buffer), version: -1 };
  }
}
