// The zoom plan of a matrix: which levels there are, which bins a tile has, which tiles a view needs. Integers only.
//
// Level 0 is one tile; each level halves the stride; the deepest is exact. Bins are anchored at token 0.

export const TILE_SIZE = 256;

export interface TileAddress {
  z: number;
  y: number;
  x: number;
}

/** Half-open ranges of tokens. */
export interface TokenRanges {
  query: readonly [number, number];
  key: readonly [number, number];
}

export class ZoomPlan {
  readonly deepest: number;

  constructor(
    readonly queries: number,
    readonly keys: number,
  ) {
    let deepest = 0;
    while (TILE_SIZE * 2 ** deepest < Math.max(queries, keys)) deepest++;
    this.deepest = deepest;
  }

  getStride(z: number): number {
    if (!Number.isInteger(z) || z < 0 || z > this.deepest) throw new RangeError(`Expected a level from 0 to ${this.deepest}, got ${z}.`);
    return 2 ** (this.deepest - z);
  }

  /** How many tiles down and across. */
  countTiles(z: number): [down: number, across: number] {
    const span = TILE_SIZE * this.getStride(z);
    return [Math.max(1, Math.ceil(this.queries / span)), Math.max(1, Math.ceil(this.keys / span))];
  }

  /** The borders of a tile's bins, along queries and along keys. */
  getEdges(z: number, y: number, x: number): [rows: number[], columns: number[]] {
    const [down, across] = this.countTiles(z);
    if (!(y >= 0 && y < down && x >= 0 && x < across)) throw new RangeError(`Level ${z} has ${down} x ${across} tiles, got ${y}/${x}.`);
    const stride = this.getStride(z);
    return [computeEdges(y, stride, this.queries), computeEdges(x, stride, this.keys)];
  }

  /** The finest level whose bins are at least one CSS pixel wide. */
  chooseLevel(zoom: number): number {
    let z = this.deepest;
    // A little slack: a zoom of exactly one pixel per bin may be rounded down.
    while (z > 0 && this.getStride(z) * zoom < 1 - 1e-9) z--;
    return z;
  }

  /** Every tile of a level that touches the ranges, top to bottom. */
  findTiles(z: number, view: TokenRanges): TileAddress[] {
    const span = TILE_SIZE * this.getStride(z);
    const [down, across] = this.countTiles(z);
    const result: TileAddress[] = [];
    const lastY = Math.min(down, Math.ceil(view.query[1] / span));
    const lastX = Math.min(across, Math.ceil(view.key[1] / span));
    for (let y = Math.max(0, Math.floor(view.query[0] / span)); y < lastY; y++) {
      for (let x = Math.max(0, Math.floor(view.key[0] / span)); x < lastX; x++) result.push({ z, y, x });
    }
    return result;
  }

  /** Whether a causal mask covers the whole tile. */
  isAboveDiagonal(tile: TileAddress, offset: number): boolean {
    const span = TILE_SIZE * this.getStride(tile.z);
    const lastQuery = Math.min(this.queries, (tile.y + 1) * span) - 1;
    return tile.x * span > lastQuery + offset;
  }
}

function computeEdges(block: number, stride: number, length: number): number[] {
  const first = block * TILE_SIZE * stride;
  const end = Math.min(length, first + TILE_SIZE * stride);
  const result: number[] = [];
  for (let edge = first; edge < end; edge += stride) result.push(edge);
  result.push(end);
  return result;
}

export function getAncestor(tile: TileAddress, levels: number): TileAddress {
  const share = 2 ** levels;
  return { z: tile.z - levels, y: Math.floor(tile.y / share), x: Math.floor(tile.x / share) };
}
