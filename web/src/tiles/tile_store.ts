// Loads and caches the tiles of a map.
//
// In: a list of requests, the most important first. Out: loaded tiles; `onChange` when one is loaded.
// At most six requests run. Outdated requests are cancelled. Failed ones are retried, later each time; a partial tile
// (the server is still building it) is shown and requested again. Memory: up to a limit in bytes, least recently used dropped first.
import { readTile, type Tile } from "../server/tile_codec";
import type { TileAddress } from "../geometry/zoom_plan";
import { paths, type Channel, type HeadRef } from "../server/protocol";
import { isAbortError, type Transport } from "../server/transport";

export interface TileRequest extends TileAddress {
  channel: Channel;
  /** Requested only when nothing else is left. */
  idle?: boolean;
}

export interface LoadedTile extends Tile {
  /** Some bins are masked, so the hatch below is visible. */
  hasMasked: boolean;
}

/** "empty": the mask allows nothing there. "failed": no response after several tries. */
export type TileResult = LoadedTile | "empty" | "failed";

/** A source of tiles: loaded tiles at once, others after they are requested. */
export interface TileSource {
  get(address: TileAddress, channel: Channel): TileResult | undefined;
  /** Replace the list of requests. They are sent once the view rests, unless `atOnce`. */
  request(list: readonly TileRequest[], atOnce?: boolean): void;
  /** Whether a tile can never be loaded: a saved page stores only some. */
  isUnavailable(address: TileAddress, channel: Channel): boolean;
}

export interface TileStoreSettings {
  maxBytes: number;
  maxRequests: number;
  /** Milliseconds without a move before requests are sent, and the longest wait while moving. */
  restMilliseconds: number;
  longestWaitMilliseconds: number;
  /** Milliseconds until a partial tile is requested again. */
  partialRetryMilliseconds: number;
  /** Milliseconds until the first retry; doubles each time. */
  retryMilliseconds: number;
  maxTries: number;
}

const DEFAULT_SETTINGS: TileStoreSettings = { maxBytes: 64 << 20, maxRequests: 6, restMilliseconds: 60, longestWaitMilliseconds: 240, partialRetryMilliseconds: 2000, retryMilliseconds: 1000, maxTries: 4 };

interface Entry {
  result: TileResult | undefined;
  bytes: number;
  /** Not before this time. */
  due: number;
  tries: number;
}

export class TileStore implements TileSource {
  readonly #entries = new Map<string, Entry>();
  readonly #running = new Map<string, AbortController>();
  readonly #settings: TileStoreSettings;
  #requests: { path: string; idle: boolean }[] = [];
  #signature = "";
  #bytes = 0;
  #head: HeadRef = { trace: "", layer: 0, head: 0 };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #movedSince: number | null = null;
  #heldUntil = 0;
  #isClosed = false;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
    settings: Partial<TileStoreSettings> = {},
  ) {
    this.#settings = { ...DEFAULT_SETTINGS, ...settings };
  }

  get bytes(): number {
    return this.#bytes;
  }

  get inFlight(): number {
    return this.#running.size;
  }

  /** Tiles of other heads are kept; their requests are cancelled. Failed tiles are requested again. */
  setHead(head: HeadRef): void {
    this.#head = head;
    for (const [path, { result: held }] of this.#entries) if (held === "failed") this.#remove(path);
    this.request([], true);
  }

  /** Send nothing until `release`, or for so long: something smaller is to be seen first. */
  hold(milliseconds: number): void {
    this.#heldUntil = performance.now() + milliseconds;
  }

  release(): void {
    this.#heldUntil = 0;
    this.#schedule(0);
  }

  get(address: TileAddress, channel: Channel): TileResult | undefined {
    const path = this.#getPath(address, channel);
    const entry = this.#entries.get(path);
    if (!entry) return undefined;
    this.#entries.delete(path);
    this.#entries.set(path, entry);
    return entry.result;
  }

  request(list: readonly TileRequest[], atOnce = false): void {
    const wanted = list.filter((one) => !this.isUnavailable(one, one.channel)).map((one) => ({ path: this.#getPath(one, one.channel), idle: one.idle ?? false }));
    const signature = wanted.map((one) => one.path).join(" ");
    if (signature === this.#signature && !atOnce) return;
    this.#signature = signature;
    this.#requests = wanted;
    const paths = new Set(wanted.map((one) => one.path));
    for (const [path, controller] of this.#running) {
      if (paths.has(path)) continue;
      this.#running.delete(path);
      controller.abort();
    }
    const now = performance.now();
    this.#movedSince ??= now;
    const { restMilliseconds, longestWaitMilliseconds } = this.#settings;
    this.#schedule(atOnce ? 0 : Math.max(0, Math.min(restMilliseconds, this.#movedSince + longestWaitMilliseconds - now)));
  }

  isUnavailable(address: TileAddress, channel: Channel): boolean {
    return this.transport.hasResponse?.(this.#getPath(address, channel)) === false;
  }

  /** Request partial tiles again: the server has finished building. */
  refreshPartial(): void {
    for (const entry of this.#entries.values()) if (typeof entry.result === "object" && entry.result.partial) entry.due = 0;
    this.#schedule(0);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    for (const controller of this.#running.values()) controller.abort();
    this.#running.clear();
    this.#entries.clear();
    this.#bytes = 0;
  }

  #getPath(address: TileAddress, channel: Channel): string {
    const { trace, layer, head } = this.#head;
    return paths.tile(trace, layer, head, address.z, address.y, address.x, channel);
  }

  #schedule(milliseconds: number): void {
    if (this.#isClosed) return;
    clearTimeout(this.#timer);
    if (milliseconds === 0) this.#startRequests();
    else this.#timer = setTimeout(() => this.#startRequests(), milliseconds);
  }

  #startRequests(): void {
    this.#movedSince = null;
    const now = performance.now();
    if (now < this.#heldUntil) return this.#schedule(this.#heldUntil - now);
    let soonest = Infinity;
    for (const { path, idle } of this.#requests) {
      if (this.#running.size >= this.#settings.maxRequests) return;
      if (idle && this.#running.size > 0 && !this.#isOnlyIdleRunning()) break;
      if (this.#running.has(path)) continue;
      const entry = this.#entries.get(path);
      const finished =
        entry?.result !== undefined &&
        !(typeof entry.result === "object" && entry.result.partial) &&
        !(entry.result === "failed" && entry.tries < this.#settings.maxTries);
      if (finished || (idle && entry?.result !== undefined)) continue;
      if (entry && entry.due > now) soonest = Math.min(soonest, entry.due);
      else void this.#fetch(path);
    }
    if (soonest < Infinity) this.#schedule(Math.max(1, soonest - now));
  }

  #isOnlyIdleRunning(): boolean {
    const idle = new Set(this.#requests.filter((one) => one.idle).map((one) => one.path));
    return [...this.#running.keys()].every((path) => idle.has(path));
  }

  async #fetch(path: string): Promise<void> {
    const controller = new AbortController();
    this.#running.set(path, controller);
    try {
      const body = await this.transport.bytes(path, controller.signal);
      if (this.#running.get(path) !== controller) return;
      this.#store(path, body === null ? "empty" : decodeTile(body), body?.byteLength ?? 64);
    } catch (error) {
      if (this.#running.get(path) !== controller || isAbortError(error)) return;
      this.#recordFailure(path);
    }
    this.#running.delete(path);
    this.onChange();
    this.#startRequests();
  }

  #store(path: string, result: TileResult, bytes: number): void {
    this.#remove(path);
    const partial = typeof result === "object" && result.partial;
    this.#entries.set(path, { result: result, bytes, due: partial ? performance.now() + this.#settings.partialRetryMilliseconds : 0, tries: 0 });
    this.#bytes += bytes;
    for (const old of this.#entries.keys()) {
      if (this.#bytes <= this.#settings.maxBytes || old === path) break;
      this.#remove(old);
    }
  }

  #recordFailure(path: string): void {
    const before = this.#entries.get(path);
    const tries = (before?.tries ?? 0) + 1;
    const due = performance.now() + this.#settings.retryMilliseconds * 2 ** (tries - 1);
    // A loaded tile is kept, even if requesting a better one failed.
    this.#entries.set(path, { result: before?.result ?? "failed", bytes: before?.bytes ?? 0, due, tries });
  }

  #remove(path: string): void {
    this.#bytes -= this.#entries.get(path)?.bytes ?? 0;
    this.#entries.delete(path);
  }
}

function decodeTile(body: ArrayBuffer): LoadedTile {
  const tile = readTile(body);
  return { ...tile, hasMasked: tile.codes.includes(0) };
}
