/**
 * The value of every head for pinned tokens, read from the server.
 *
 * In: a trace and a link. Out: an answer per head as far as they are read; calls `onChange` when more are.
 * A new link cancels the requests of the one before. Long texts are read layer by layer.
 */

import { findHeads } from "../server/find_heads";
import { LatestRequest } from "../server/requests";
import type { LayerLinks, Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import { toRange, type Link } from "./head_question";
import type { LinkAnswer } from "./sentences";

/** Stepping through tokens with a held key asks nothing until it rests. */
const PAUSE_MILLISECONDS = 100;

export class LinkValues {
  pending = false;
  problem = "";
  readonly #request = new LatestRequest();
  #layers: (LayerLinks | null | undefined)[] = [];
  #key = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly transport: Transport,
    private readonly onChange: () => void,
  ) {}

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
    return this.#request.run(
      async (signal) => {
        for await (const found of findHeads(this.transport, meta, { query: toRange(query), key: toRange(key), runs: key?.runs }, signal, first)) {
          signal.throwIfAborted();
          found.layers.forEach((layer, index) => (this.#layers[found.first_layer + index] = layer));
          this.onChange();
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

