// The tiles of a map: what is held, what is asked, in which order.
//
// In: a list of wanted tiles, the most wanted first. Out: held tiles, at once; `onChange` when one has come.
// At most six requests run. What is no longer wanted is given up. What failed is asked again, later each time; a partial tile
// (the server is still building it) is shown and asked again. Memory: bodies up to a limit in bytes, least recently used first out.
import { readTile, type Tile } from "../server/tile_codec";
import type { TileAddress } from "../geometry/zoom_plan";
import { paths, type Channel } from "../server/protocol";
import { aborted, type Transport } from "../server/transport";

export interface HeadName {
  trace: string;
  layer: number;
  head: number;
}

export interface Wanted extends TileAddress {
  channel: Channel;
  /** Asked only when nothing else is left to ask. */
  idle?: boolean;
}

export interface HeldTile extends Tile {
  /** Some bin is masked: the hatch below will show. */
  holes: boolean;
}

/** "empty": the mask allows nothing there. "failed": no answer so far, and after several tries not asked any more. */
export type Held = HeldTile | "empty" | "failed";

/** Where a picture gets its tiles: held ones at once, the others when they have been wanted and have come. */
export interface TileSource {
  get(address: TileAddress, channel: Channel): Held | undefined;
  /** Says what is wanted now. Requests wait until the view rests, unless `atOnce`. */
  want(list: readonly Wanted[], atOnce?: boolean): void;
  /** True where it is known that a tile will never come: a saved page holds only some. */
  lacks(address: TileAddress, channel: Channel): boolean;
}

export interface Settings {
  limit: number;
  inFlight: number;
  /** Milliseconds of rest after a move before asking, and the longest wait while moving on. */
  rest: number;
  longestWait: number;
  /** Milliseconds until a partial tile is asked again. */
  again: number;
  /** Milliseconds until the first retry; doubles each time. */
  retry: number;
  tries: number;
}

const usual: Settings = { limit: 64 << 20, inFlight: 6, rest: 60, longestWait: 240, again: 2000, retry: 1000, tries: 4 };

interface Entry {
  held: Held | undefined;
  bytes: number;
  /** Not before this time. */
  due: number;
  tries: number;
}

export class TileStore implements TileSource {
  readonly #entries = new Map<string, Entry>();
  readonly #running = new Map<string, AbortController>();
  readonly #settings: Settings;
  #wanted: { path: string; idle: boolean }[] = [];
  #signature = "";
  #bytes = 0;
  #head: HeadName = { trace: "", layer: 0, head: 0 };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #movedSince: number | null = null;
  #closed = false;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
    settings: Partial<Settings> = {},
  ) {
    this.#settings = { ...usual, ...settings };
  }

  get bytes(): number {
    return this.#bytes;
  }

  get inFlight(): number {
    return this.#running.size;
  }

  /** Tiles of other heads stay held; their requests are given up. What had failed is asked anew. */
  setHead(head: HeadName): void {
    this.#head = head;
    for (const [path, { held }] of this.#entries) if (held === "failed") this.#forget(path);
    this.want([], true);
  }

  get(address: TileAddress, channel: Channel): Held | undefined {
    const path = this.#path(address, channel);
    const entry = this.#entries.get(path);
    if (!entry) return undefined;
    this.#entries.delete(path);
    this.#entries.set(path, entry);
    return entry.held;
  }

  want(list: readonly Wanted[], atOnce = false): void {
    const wanted = list.filter((one) => !this.lacks(one, one.channel)).map((one) => ({ path: this.#path(one, one.channel), idle: one.idle ?? false }));
    const signature = wanted.map((one) => one.path).join(" ");
    if (signature === this.#signature && !atOnce) return;
    this.#signature = signature;
    this.#wanted = wanted;
    const paths = new Set(wanted.map((one) => one.path));
    for (const [path, controller] of this.#running) {
      if (paths.has(path)) continue;
      this.#running.delete(path);
      controller.abort();
    }
    const now = performance.now();
    this.#movedSince ??= now;
    const { rest, longestWait } = this.#settings;
    this.#wake(atOnce ? 0 : Math.max(0, Math.min(rest, this.#movedSince + longestWait - now)));
  }

  lacks(address: TileAddress, channel: Channel): boolean {
    return this.transport.holds?.(this.#path(address, channel)) === false;
  }

  /** The server has finished building: partial tiles are asked again now. */
  refreshPartial(): void {
    for (const entry of this.#entries.values()) if (typeof entry.held === "object" && entry.held.partial) entry.due = 0;
    this.#wake(0);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const controller of this.#running.values()) controller.abort();
    this.#running.clear();
    this.#entries.clear();
    this.#bytes = 0;
  }

  #path(address: TileAddress, channel: Channel): string {
    const { trace, layer, head } = this.#head;
    return paths.tile(trace, layer, head, address.z, address.y, address.x, channel);
  }

  #wake(milliseconds: number): void {
    if (this.#closed) return;
    clearTimeout(this.#timer);
    if (milliseconds === 0) this.#pump();
    else this.#timer = setTimeout(() => this.#pump(), milliseconds);
  }

  #pump(): void {
    this.#movedSince = null;
    const now = performance.now();
    let soonest = Infinity;
    for (const { path, idle } of this.#wanted) {
      if (this.#running.size >= this.#settings.inFlight) return;
      if (idle && this.#running.size > 0 && !this.#onlyIdleRuns()) break;
      if (this.#running.has(path)) continue;
      const entry = this.#entries.get(path);
      const finished =
        entry?.held !== undefined &&
        !(typeof entry.held === "object" && entry.held.partial) &&
        !(entry.held === "failed" && entry.tries < this.#settings.tries);
      if (finished || (idle && entry?.held !== undefined)) continue;
      if (entry && entry.due > now) soonest = Math.min(soonest, entry.due);
      else void this.#fetch(path);
    }
    if (soonest < Infinity) this.#wake(Math.max(1, soonest - now));
  }

  #onlyIdleRuns(): boolean {
    const idle = new Set(this.#wanted.filter((one) => one.idle).map((one) => one.path));
    return [...this.#running.keys()].every((path) => idle.has(path));
  }

  async #fetch(path: string): Promise<void> {
    const controller = new AbortController();
    this.#running.set(path, controller);
    try {
      const body = await this.transport.bytes(path, controller.signal);
      if (this.#running.get(path) !== controller) return;
      this.#keep(path, body === null ? "empty" : opened(body), body?.byteLength ?? 64);
    } catch (error) {
      if (this.#running.get(path) !== controller || aborted(error)) return;
      this.#fail(path);
    }
    this.#running.delete(path);
    this.onChange();
    this.#pump();
  }

  #keep(path: string, held: Held, bytes: number): void {
    this.#forget(path);
    const partial = typeof held === "object" && held.partial;
    this.#entries.set(path, { held, bytes, due: partial ? performance.now() + this.#settings.again : 0, tries: 0 });
    this.#bytes += bytes;
    for (const old of this.#entries.keys()) {
      if (this.#bytes <= this.#settings.limit || old === path) break;
      this.#forget(old);
    }
  }

  #fail(path: string): void {
    const before = this.#entries.get(path);
    const tries = (before?.tries ?? 0) + 1;
    const due = performance.now() + this.#settings.retry * 2 ** (tries - 1);
    // A picture that was there stays there, even if asking again for a better one failed.
    this.#entries.set(path, { held: before?.held ?? "failed", bytes: before?.bytes ?? 0, due, tries });
  }

  #forget(path: string): void {
    this.#bytes -= this.#entries.get(path)?.bytes ?? 0;
    this.#entries.delete(path);
  }
}

function opened(body: ArrayBuffer): HeldTile {
  const tile = readTile(body);
  return { ...tile, holes: tile.codes.includes(0) };
}
