// Token texts of a trace, loaded in blocks on first use.
//
// In: a transport and a trace's meta. Out: loaded texts, else undefined; `onLoaded` is called when more are loaded.
// Memory: at most 256 blocks of 1024 texts; the block least recently used goes first.
import { LruCache } from "../lru_cache";
import { paths, type Meta, type Side } from "./protocol";
import { isAbortError, type Transport } from "./transport";

const BLOCK = 1024;
const MAX_BLOCKS = 256;
const RETRY_MILLISECONDS = 5000;

export class TokenTexts {
  onLoaded: () => void = () => undefined;
  readonly #blocks = new LruCache<string, string[] | "loading">(MAX_BLOCKS);

  constructor(
    readonly transport: Transport,
    readonly meta: Meta,
  ) {}

  get(layer: number, side: Side, position: number): string | undefined {
    const block = Math.floor(position / BLOCK);
    return this.#getBlock(layer, side, block)?.[position - block * BLOCK];
  }

  /** All texts of a half-open range, or undefined while one is missing. */
  getRange(layer: number, side: Side, from: number, to: number): string[] | undefined {
    const result: string[] = [];
    let whole = true;
    for (let position = from; position < to; position++) {
      const text = this.get(layer, side, position);
      if (text === undefined) {
        whole = false;
        // The rest of this block is missing as well.
        position = (Math.floor(position / BLOCK) + 1) * BLOCK - 1;
      } else result.push(text);
    }
    return whole ? result : undefined;
  }

  #getBlock(layer: number, side: Side, block: number): string[] | undefined {
    const name = `${layer}/${side}/${block}`;
    const loaded = this.#blocks.get(name);
    if (loaded !== undefined) return loaded === "loading" ? undefined : loaded;
    const info = this.meta.layers[layer];
    const end = Math.min((block + 1) * BLOCK, (side === "query" ? info?.queries : info?.keys) ?? 0);
    if (info?.has_texts && block >= 0 && block * BLOCK < end) {
      void this.#load(name, paths.tokens(this.meta.trace, layer, side, block * BLOCK, end));
    }
    return undefined;
  }

  async #load(name: string, path: string): Promise<void> {
    this.#blocks.set(name, "loading");
    try {
      this.#blocks.set(name, await this.transport.json<string[]>(path));
      this.onLoaded();
    } catch (error) {
      // Positions stand in for the texts, which are requested again later.
      if (!isAbortError(error)) setTimeout(() => this.#blocks.delete(name), RETRY_MILLISECONDS);
    }
  }
}
