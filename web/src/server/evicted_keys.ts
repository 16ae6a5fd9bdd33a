// Which keys of a head are evicted from the KV cache. The least recently used response is dropped first.
import { LruCache } from "../lru_cache";
import type { Eviction } from "../state";
import { paths, type Evicted, type HeadRef, type Layer } from "./protocol";
import { LatestRequest } from "./requests";
import type { Transport } from "./transport";

const MAX_ENTRIES = 16;

export class EvictedKeys {
  readonly context: number;
  /** The number of evicted keys before each key. */
  readonly #sums: Uint32Array;

  constructor({ context, runs }: Evicted) {
    this.context = context;
    this.#sums = new Uint32Array(context + 1);
    let key = 0;
    runs.forEach((length, run) => {
      for (const end = key + length; key < end; key++) this.#sums[key + 1] = (this.#sums[key] ?? 0) + (run % 2);
    });
  }

  /** How many of the keys [from, to) are evicted. */
  count(from: number, to: number): number {
    const get = (key: number): number => this.#sums[Math.min(Math.max(key, 0), this.context)] ?? 0;
    return Math.max(0, get(to) - get(from));
  }

  /** Runs of evicted keys [start, stop) inside [from, to). */
  *listRuns(from: number, to: number): Generator<[start: number, stop: number]> {
    const end = Math.min(to, this.context);
    let start: number | null = null;
    for (let key = Math.max(0, from); key <= end; key++) {
      const isEvicted = key < end && this.count(key, key + 1) > 0;
      if (isEvicted) start ??= key;
      else if (start !== null) {
        yield [start, key];
        start = null;
      }
    }
  }
}

/** Whether a layer has a KV cache to evict from. */
export function canEvict(layer: Layer | null | undefined): layer is Layer {
  return layer?.causal === true && !layer.cross && layer.offset === 0 && !layer.zeros_masked && layer.keys > 1;
}

export class EvictionStore {
  readonly #entries = new LruCache<string, EvictedKeys>(MAX_ENTRIES);
  readonly #request = new LatestRequest();
  #requested = "";
  /** Why the last request failed; "" otherwise. */
  problem = "";

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {}

  /** The evicted keys of a head; null where nothing is evicted, or while it is loading. */
  get({ trace, layer, head }: HeadRef, info: Layer | null | undefined, eviction: Eviction | null): EvictedKeys | null {
    if (!eviction || !canEvict(info)) return null;
    const path = paths.evicted(trace, layer, head, eviction);
    const found = this.#entries.get(path);
    if (!found && path !== this.#requested) this.#load(path);
    return found ?? null;
  }

  close(): void {
    this.#request.cancel();
  }

  #load(path: string): void {
    this.#requested = path;
    this.problem = "";
    void this.#request.run(
      (signal) => this.transport.json<Evicted>(path, signal),
      (evicted) => {
        this.#entries.set(path, new EvictedKeys(evicted));
        this.#requested = "";
        this.onChange();
      },
      (message) => (this.problem = message),
    );
  }
}
