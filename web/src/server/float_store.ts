// Small float32 answers by path: the strips beside the map and the sink's column. Held up to a number, least recently used first out.
import { readFloats, type Floats } from "./tile_codec";
import type { Transport } from "./transport";

const MOST = 256;
const RETRY_MILLISECONDS = 3000;
const RUNNING_AT_MOST = 2;

export class FloatStore {
  readonly #held = new Map<string, Floats | "asked">();
  readonly #abort = new AbortController();
  #waiting: string[] = [];
  #running = 0;

  constructor(
    readonly transport: Transport,
    readonly onChange: () => void,
  ) {}

  /** At once, or undefined and a request begins. */
  get(path: string): Floats | undefined {
    const held = this.#held.get(path);
    if (held === "asked") return undefined;
    if (held) {
      this.#held.delete(path);
      this.#held.set(path, held);
      return held;
    }
    // The newest first: what was asked long ago has most likely left the view.
    this.#held.set(path, "asked");
    this.#waiting.push(path);
    this.#pump();
    return undefined;
  }

  close(): void {
    this.#waiting = [];
    this.#abort.abort();
  }

  #keep(path: string, floats: Floats): void {
    this.#held.set(path, floats);
    if (floats.partial) this.#askAgainLater(path);
  }

  /** Forgotten after a while; whoever still draws it then asks for it. */
  #askAgainLater(path: string): void {
    setTimeout(() => {
      this.#held.delete(path);
      if (!this.#abort.signal.aborted) this.onChange();
    }, RETRY_MILLISECONDS);
  }

  #pump(): void {
    while (this.#running < RUNNING_AT_MOST) {
      const path = this.#waiting.pop();
      if (path === undefined) return;
      this.#running++;
      void this.#load(path);
    }
  }

  async #load(path: string): Promise<void> {
    try {
      const body = await this.transport.bytes(path, this.#abort.signal);
      if (body) this.#keep(path, readFloats(body));
      const oldest = this.#held.keys().next().value;
      if (this.#held.size > MOST && oldest !== undefined) this.#held.delete(oldest);
      this.onChange();
    } catch {
      if (!this.#abort.signal.aborted) this.#askAgainLater(path);
    } finally {
      this.#running--;
      this.#pump();
    }
  }
}
