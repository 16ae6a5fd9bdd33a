// Reads rows of the arrays of archives as numbers, in blocks that are kept.
//
// Neighbouring blocks that are missing are one request. Memory: at most 64 MB of blocks as they are stored.
import type { DataType, StoredArray } from "./manifest";
import type { RangeReader } from "./range_reader";

const BLOCK_ROWS = 256;
const MAX_BYTES = 64 << 20;
const MAX_REQUEST_BYTES = 4 << 20;

const ITEM_BYTES: Readonly<Record<DataType, number>> = { f32: 4, u32: 4, f16: 2, bf16: 2 };

export class ArrayReader {
  /** The least recently used first. */
  readonly #blocks = new Map<string, Promise<ArrayBuffer>>();
  readonly #sizes = new Map<string, number>();
  #bytes = 0;

  constructor(private readonly reader: Pick<RangeReader, "read">) {}

  /** Rows [start, stop) as floats. */
  async readFloats(file: string, array: StoredArray, start: number, stop: number): Promise<Float32Array> {
    const bytes = await this.#readRows(file, array, start, stop);
    if (array.dtype === "f32") return new Float32Array(bytes);
    const halves = new Uint16Array(bytes);
    return array.dtype === "bf16" ? convertBrainFloats(halves) : Float32Array.from(halves, convertHalf);
  }

  /** Rows [start, stop) as unsigned integers. */
  async readIntegers(file: string, array: StoredArray, start: number, stop: number): Promise<Uint32Array> {
    return new Uint32Array(await this.#readRows(file, array, start, stop));
  }

  async #readRows(file: string, array: StoredArray, start: number, stop: number): Promise<ArrayBuffer> {
    const rowBytes = array.width * ITEM_BYTES[array.dtype];
    // Single rows of an array are read alone: a block of all heads would be a thousand times as much.
    if (stop - start === 1 && !this.#blocks.has(getKey(file, array, Math.floor(start / BLOCK_ROWS)))) return this.reader.read(file, [array.offset + start * rowBytes, rowBytes]);
    const first = Math.floor(start / BLOCK_ROWS);
    const last = Math.ceil(stop / BLOCK_ROWS);
    this.#request(file, array, first, last);
    const parts: ArrayBuffer[] = [];
    for (let block = first; block < last; block++) parts.push(await this.#use(getKey(file, array, block)));
    const result = new Uint8Array((stop - start) * rowBytes);
    parts.forEach((part, index) => {
      const row = (first + index) * BLOCK_ROWS;
      const from = Math.max(start, row);
      const to = Math.min(stop, row + BLOCK_ROWS);
      result.set(new Uint8Array(part, (from - row) * rowBytes, (to - from) * rowBytes), (from - start) * rowBytes);
    });
    this.#trim();
    return result.buffer;
  }

  /** Request the blocks [first, last) that are missing. */
  #request(file: string, array: StoredArray, first: number, last: number): void {
    const rowBytes = array.width * ITEM_BYTES[array.dtype];
    const most = Math.max(1, Math.floor(MAX_REQUEST_BYTES / (rowBytes * BLOCK_ROWS)));
    for (let block = first; block < last; block++) {
      if (this.#blocks.has(getKey(file, array, block))) continue;
      let end = block + 1;
      while (end < last && end - block < most && !this.#blocks.has(getKey(file, array, end))) end++;
      const [top, bottom] = [block * BLOCK_ROWS, Math.min(end * BLOCK_ROWS, array.rows)];
      const run = this.reader.read(file, [array.offset + top * rowBytes, (bottom - top) * rowBytes]);
      for (let one = block; one < end; one++) {
        const [from, to] = [(one - block) * BLOCK_ROWS * rowBytes, Math.min((one - block + 1) * BLOCK_ROWS, bottom - top) * rowBytes];
        this.#add(getKey(file, array, one), run.then((bytes) => bytes.slice(from, to)), to - from);
      }
      block = end - 1;
    }
  }

  #add(key: string, block: Promise<ArrayBuffer>, bytes: number): void {
    this.#blocks.set(key, block);
    this.#sizes.set(key, bytes);
    this.#bytes += bytes;
    // A failure is not kept.
    block.catch(() => this.#remove(key));
  }

  #use(key: string): Promise<ArrayBuffer> {
    const block = this.#blocks.get(key);
    if (!block) return Promise.reject(new Error("A block was dropped while it was read."));
    this.#blocks.delete(key);
    this.#blocks.set(key, block);
    return block;
  }

  #remove(key: string): void {
    this.#bytes -= this.#sizes.get(key) ?? 0;
    this.#sizes.delete(key);
    this.#blocks.delete(key);
  }

  #trim(): void {
    for (const key of this.#blocks.keys()) {
      if (this.#bytes <= MAX_BYTES) return;
      this.#remove(key);
    }
  }
}

const getKey = (file: string, array: StoredArray, block: number): string => `${file} ${array.offset} ${block}`;

function convertBrainFloats(halves: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

/** An IEEE half as a number. */
export function convertHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
