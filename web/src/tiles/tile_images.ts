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

/** The pixel of every code for a row of a tile; or, above the diagonal of a split picture, for a column, which is a query there. */
export interface TileColours {
  getLookup(tile: LoadedTile, side: "row" | "column", index: number): Uint32Array;
  readonly isSplit: boolean;
}

export class TileImages {
  readonly #images = new LruCache<LoadedTile, TileImage>(MAX_IMAGES);
  #colours: TileColours | null = null;
  #version = 0;

  /** New colours: pictures in view are recoloured as they are drawn. */
  setColours(colours: TileColours): void {
    this.#colours = colours;
    this.#version++;
  }

  getImage(tile: LoadedTile): OffscreenCanvas {
    let picture = this.#images.get(tile);
    if (!picture) this.#images.set(tile, (picture = createImage(tile)));
    if (this.#colours && picture.version !== this.#version) {
      paintCodes(tile, picture.pixels, this.#colours);
      picture.canvas.getContext("2d")?.putImageData(picture.image, 0, 0);
      picture.version = this.#version;
    }
    return picture.canvas;
  }

  clear(): void {
    this.#images.clear();
  }
}

function paintCodes(tile: LoadedTile, pixels: Uint32Array, { getLookup, isSplit }: TileColours): void {
  const { codes, rows, columns } = tile;
  for (let row = 0; row < rows; row++) {
    const lookup = getLookup(tile, "row", row);
    for (let index = row * columns; index < (row + 1) * columns; index++) pixels[index] = lookup[codes[index] as number] as number;
  }
  if (!isSplit || tile.x < tile.y) return;
  for (let column = 0; column < columns; column++) {
    const lookup = getLookup(tile, "column", column);
    const end = tile.x > tile.y ? rows : Math.min(rows, column);
    for (let row = 0; row < end; row++) pixels[row * columns + column] = lookup[codes[row * columns + column] as number] as number;
  }
}

function createImage({ columns, rows }: LoadedTile): TileImage {
  const image = new ImageData(columns, rows);
  return { canvas: new OffscreenCanvas(columns, rows), image, pixels: new Uint32Array(image.data.buffer), version: -1 };
}
