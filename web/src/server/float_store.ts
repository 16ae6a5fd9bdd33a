// Small float32 responses by path: the strips beside the map and the sink's column. The least recently used is dropped first.
import { LruCache } from "../lru_cache";
import { readFloats, type FloatTile } from "./tile_codec";
import type { Transport } from "./transport";

const MAX_ENTRIES = 256;
const RETRY_MILLISECONDS = 3000;
const MAX_REQUESTS = 2;

export class FloatStore {
  readonly #entries = new LruCache<string, FloatTile | "loading">(MAX_ENTRIES);
  readonly #abort = new AbortController();
  #waiting: string[] = [];
  #running = 0;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {}

  /** The response; or undefined, and a request is started. */
  get(path: string): FloatTile | undefined {
    const entry = this.#entries.get(path);
    if (entry !== undefined) return entry === "loading" ? undefined : entry;
    // The newest first: older requests have most likely left the view.
    this.#entries.set(path, "loading");
    this.#waiting.push(path);
    this.#startRequests();
    return undefined;
  }

  close(): void {
    this.#waiting = [];
    this.#abort.abort();
  }

  /** Dropped after a while; it is requested again if it is still drawn. */
  #retryLater(path: string): void {
    setTimeout(() => {
      this.#entries.delete(path);
      if (!this.#abort.signal.aborted) this.onChange();
    }, RETRY_MILLISECONDS);
  }

  #startRequests(): void {
    while (this.#running < MAX_REQUESTS) {
      const path = this.#waiting.pop();
      if (path === undefined) return;
      this.#running++;
      void this.#load(path);
    }
  }

  async #load(path: string): Promise<void> {
    try {
      const body = await this.transport.bytes(path, this.#abort.signal);
      const floats = body && readFloats(body);
      if (floats) this.#entries.set(path, floats);
      if (floats?.partial) this.#retryLater(path);
      this.onChange();
    } catch {
      if (!this.#abort.signal.aborted) this.#retryLater(path);
    } finally {
      this.#running--;
      this.#startRequests();
    }
  }
}
