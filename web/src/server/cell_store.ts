// Exact weights of single pairs, loaded in blocks of 16 x 16 pairs.
//
// At most one request per 50 ms, for the newest range. Memory: at most 1024 blocks of one head.
import { readFloats } from "./tile_codec";
import { paths, type HeadRef } from "./protocol";
import type { TokenRanges } from "../geometry/zoom_plan";
import type { Transport } from "./transport";

const BLOCK = 16;
const MAX_BLOCKS = 1024;
const MAX_CELLS = 65_536;
const PAUSE_MILLISECONDS = 50;

export class CellStore {
  readonly #blocks = new Map<string, Float32Array>();
  #head: HeadRef = { trace: "", layer: 0, head: 0 };
  #queries = 0;
  #keys = 0;
  #nextRange: TokenRanges | null = null;
  #running: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #last = -Infinity;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {}

  setHead(head: HeadRef, queries: number, keys: number): void {
    this.close();
    this.#head = head;
    this.#queries = queries;
    this.#keys = keys;
    this.#blocks.clear();
  }

  /** The exact weight; NaN where masked; undefined where not loaded. */
  get(query: number, key: number): number | undefined {
    const block = this.#blocks.get(`${Math.floor(query / BLOCK)}/${Math.floor(key / BLOCK)}`);
    return block?.[(query % BLOCK) * BLOCK + (key % BLOCK)];
  }

  /** Request the missing pairs of a range; a range that is too large is ignored. */
  request(range: TokenRanges): void {
    const missing = this.#findMissing(range);
    if (missing === null) return;
    this.#nextRange = missing;
    this.#schedule();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#running?.abort();
    this.#running = null;
    this.#nextRange = null;
  }

  #findMissing(range: TokenRanges): TokenRanges | null {
    let box: [number, number, number, number] | null = null;
    const [i1, j1] = [Math.min(this.#queries, range.query[1]), Math.min(this.#keys, range.key[1])];
    if ((i1 - range.query[0] + 2 * BLOCK) * (j1 - range.key[0] + 2 * BLOCK) > MAX_CELLS) return null;
    for (let y = Math.floor(range.query[0] / BLOCK); y * BLOCK < i1; y++) {
      for (let x = Math.floor(range.key[0] / BLOCK); x * BLOCK < j1; x++) {
        if (this.#blocks.has(`${y}/${x}`)) continue;
        box = box ? [Math.min(box[0], y), Math.max(box[1], y + 1), Math.min(box[2], x), Math.max(box[3], x + 1)] : [y, y + 1, x, x + 1];
      }
    }
    if (!box) return null;
    return {
      query: [box[0] * BLOCK, Math.min(this.#queries, box[1] * BLOCK)],
      key: [box[2] * BLOCK, Math.min(this.#keys, box[3] * BLOCK)],
    };
  }

  #schedule(): void {
    if (this.#running || this.#timer !== undefined) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        const range = this.#nextRange;
        this.#nextRange = null;
        if (range) void this.#fetch(range);
      },
      Math.max(0, this.#last + PAUSE_MILLISECONDS - performance.now()),
    );
  }

  async #fetch(range: TokenRanges): Promise<void> {
    const controller = new AbortController();
    this.#running = controller;
    this.#last = performance.now();
    const { trace, layer, head } = this.#head;
    const [i0, i1] = range.query;
    const [j0, j1] = range.key;
    try {
      const body = await this.transport.bytes(paths.cells(trace, layer, head, i0, i1, j0, j1), controller.signal);
      if (body && this.#running === controller) {
        this.#store(readFloats(body).values, i0, i1, j0, j1);
        this.onChange();
      }
    } catch {
      // The approximate value stays; the next move requests it again.
    }
    if (this.#running !== controller) return;
    this.#running = null;
    if (this.#nextRange) this.#schedule();
  }

  #store(values: Float32Array, i0: number, i1: number, j0: number, j1: number): void {
    for (let i = i0; i < i1; i++) {
      for (let j = j0; j < j1; j++) {
        const name = `${Math.floor(i / BLOCK)}/${Math.floor(j / BLOCK)}`;
        let block = this.#blocks.get(name);
        if (!block) this.#blocks.set(name, (block = new Float32Array(BLOCK * BLOCK).fill(NaN)));
        block[(i % BLOCK) * BLOCK + (j % BLOCK)] = values[(i - i0) * (j1 - j0) + (j - j0)] ?? NaN;
      }
    }
    for (const name of this.#blocks.keys()) {
      if (this.#blocks.size <= MAX_BLOCKS) break;
      this.#blocks.delete(name);
    }
  }
}
