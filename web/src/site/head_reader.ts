// The exact weights of one head of a site: rows, columns, blocks and tiles, from its queries and keys or from stored weights.
//
// In: the index of its layer. Out: numbers and tile bodies. Memory: a block, and what the reader of arrays keeps.
import type { Channel, Layer, MatrixShape, Side } from "../server/protocol";
import type { ArrayReader } from "./array_reader";
import type { Block } from "./attention";
import type { ArchiveIndex, HeadIndex, StoredArray, TraceDescription } from "./manifest";
import type { WorkerPool } from "./worker_pool";

/** Of a side of a tile. */
const TILE_SIZE = 256;
/** The most weights that are computed at once. */
const MAX_CELLS = 1 << 22;

/** A head that a path names. */
export interface OpenHead {
  readonly trace: TraceDescription;
  readonly layer: Layer;
  readonly index: HeadIndex;
  readonly reader: HeadReader;
}

export class HeadReader {
  constructor(
    private readonly index: HeadIndex,
    private readonly layer: ArchiveIndex,
    private readonly shape: MatrixShape,
    private readonly arrays: ArrayReader,
    private readonly workers: WorkerPool,
  ) {}

  /** The weights of queries [i0, i1) and keys [j0, j1), NaN where masked. */
  async readWeights(i0: number, i1: number, j0: number, j1: number, signal?: AbortSignal): Promise<Float32Array> {
    const block = await this.#readBlock(i0, i1, j0, j1);
    if ("weights" in block.source) return block.source.weights;
    return new Float32Array((await this.workers.run({ block, tile: null }, signal)) ?? new ArrayBuffer(0));
  }

  /** A tile of bins of `stride` x `stride` cells; null if all of it is masked. */
  async readTile(z: number, y: number, x: number, stride: number, channel: Channel, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    const span = TILE_SIZE * stride;
    const [i0, j0] = [y * span, x * span];
    const block = await this.#readBlock(i0, Math.min(i0 + span, this.shape.queries), j0, Math.min(j0 + span, this.shape.keys));
    signal?.throwIfAborted();
    return this.workers.run({ block, tile: { z, y, x, stride, channel } }, signal);
  }

  /** The sum of rows or columns [start, stop); NaN where all of them are masked. */
  async sumWeights(side: Side, start: number, stop: number, signal?: AbortSignal): Promise<Float64Array> {
    const length = side === "query" ? this.shape.keys : this.shape.queries;
    const result = new Float64Array(length).fill(NaN);
    const step = Math.max(1, Math.floor(MAX_CELLS / (stop - start)));
    for (let from = 0; from < length; from += step) {
      const to = Math.min(from + step, length);
      const weights = side === "query" ? await this.readWeights(start, stop, from, to, signal) : await this.readWeights(from, to, start, stop, signal);
      signal?.throwIfAborted();
      for (let one = 0; one < stop - start; one++) {
        for (let other = 0; other < to - from; other++) {
          const weight = weights[side === "query" ? one * (to - from) + other : other * (stop - start) + one] ?? NaN;
          if (!Number.isNaN(weight)) result[from + other] = (result[from + other] || 0) + weight;
        }
      }
    }
    return result;
  }

  /** Rows of an array of this head. */
  readArray(name: string, start: number, stop: number): Promise<Float32Array> {
    return this.arrays.readFloats(this.index.file, getArray(this.index, name), start, stop);
  }

  async readQuery(query: number): Promise<Float32Array> {
    return this.readArray("query", query, query + 1);
  }

  async readKey(key: number): Promise<Float32Array> {
    return this.arrays.readFloats(this.layer.file, getArray(this.layer, `key ${this.index.key_head ?? 0}`), key, key + 1);
  }

  /** |v|; null where values were not recorded. */
  async readValueNorm(key: number): Promise<number | null> {
    const array = this.layer.arrays[`value norm ${this.index.key_head ?? 0}`];
    return array ? ((await this.arrays.readFloats(this.layer.file, array, key, key + 1))[0] ?? null) : null;
  }

  async #readBlock(i0: number, i1: number, j0: number, j1: number): Promise<Block> {
    const { rule } = this.index;
    if (!rule) return { i0, i1, j0, j1, source: { weights: await this.#readStoredWeights(i0, i1, j0, j1) } };
    const [query, key, lse] = await Promise.all([
      this.readArray("query", i0, i1),
      this.arrays.readFloats(this.layer.file, getArray(this.layer, `key ${this.index.key_head ?? 0}`), j0, j1),
      this.readArray("lse", i0, i1),
    ]);
    return { i0, i1, j0, j1, source: { rule, query, key, lse } };
  }

  async #readStoredWeights(i0: number, i1: number, j0: number, j1: number): Promise<Float32Array> {
    const rows = await this.readArray("weights", i0, i1);
    const result = new Float32Array((i1 - i0) * (j1 - j0));
    for (let row = 0; row < i1 - i0; row++) result.set(rows.subarray(row * this.shape.keys + j0, row * this.shape.keys + j1), row * (j1 - j0));
    return result;
  }
}

function getArray(index: ArchiveIndex, name: string): StoredArray {
  const found = index.arrays[name];
  if (!found) throw new Error(`${index.file} has no array named ${name}.`);
  return found;
}
