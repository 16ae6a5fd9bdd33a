/**
 * The value of every head for pinned tokens, read from the server.
 *
 * In: a trace and a link. Out: an answer per head as far as they are read; calls `onChange` when more are.
 * A new link cancels the requests of the one before. Long texts are read layer by layer.
 */

import { LatestRequest, ResponseCache } from "../server/requests";
import { paths, type HeadLinks, type LayerLinks, type Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import { toRange, type Link } from "./head_question";
import type { LinkAnswer } from "./sentences";

/** Up to so many tokens all layers are read at once. */
const MAX_TOKENS_AT_ONCE = 16_384;
/** Stepping through tokens with a held key asks nothing until it rests. */
const PAUSE_MILLISECONDS = 100;

export class LinkValues {
  pending = false;
  problem = "";
  measure: HeadLinks["measure"] = "weight";
  readonly #request = new LatestRequest();
  readonly #cache: ResponseCache;
  #layers: (LayerLinks | null | undefined)[] = [];
  #key = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    transport: Transport,
    private readonly onChange: () => void,
  ) {
    this.#cache = new ResponseCache(transport);
  }

  /** `first` is the layer to read first. */
  load(meta: Meta, link: Link, first: number): void {
    const key = `${meta.trace} ${JSON.stringify(link)}`;
    if (key === this.#key) return;
    this.cancel();
    this.#key = key;
    this.pending = true;
    this.#timer = setTimeout(() => void this.#read(meta, link, first), PAUSE_MILLISECONDS);
  }

  cancel(): void {
    clearTimeout(this.#timer);
    this.#request.cancel();
    this.#key = "";
    this.#layers = [];
    this.pending = false;
    this.problem = "";
  }

  /** undefined while it is not read; null where the layer does not have these tokens. */
  getAnswer(layer: number, head: number): LinkAnswer | null | undefined {
    const found = this.#layers[layer];
    return found && { value: found.values[head] ?? null, position: found.positions?.[head] ?? null };
  }

  #read(meta: Meta, { query, key }: Link, first: number): Promise<void> {
    const count = meta.layers.length;
    const isLong = meta.layers.some(({ queries, keys }) => Math.max(queries, keys) > MAX_TOKENS_AT_ONCE);
    const parts = isLong ? meta.layers.map((_, index) => (index + first) % count).map((layer) => [layer, layer + 1] as const) : [null];
    return this.#request.run(
      async (signal) => {
        for (const layers of parts) {
          const found = await this.#cache.json<HeadLinks>(paths.findHeads(meta.trace, { query: toRange(query), key: toRange(key) }, layers ?? undefined), signal);
          signal.throwIfAborted();
          this.measure = found.measure;
          found.layers.forEach((layer, index) => (this.#layers[found.first_layer + index] = layer));
          if (layers !== parts.at(-1)) this.onChange();
        }
      },
      () => {
        this.pending = false;
        this.onChange();
      },
      (message) => {
        this.pending = false;
        this.problem = message;
        this.onChange();
      },
    );
  }
}

