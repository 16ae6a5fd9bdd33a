/** The metas and token texts of traces, loaded once each. */

import { paths, type FindResult, type Meta, type Side } from "./protocol";
import { TokenTexts } from "./token_texts";
import type { Transport } from "./transport";

/** The next token with this text, from `after` on. */
export interface FindRequest {
  readonly text: string;
  readonly after: number;
  readonly backward: boolean;
  readonly signal: AbortSignal;
}

export class TraceCache {
  readonly #metas = new Map<string, Meta>();
  readonly #pending = new Map<string, Promise<Meta>>();
  readonly #texts = new Map<string, TokenTexts>();

  constructor(
    private readonly transport: Transport,
    private readonly onTextsLoaded: () => void,
    firstMeta: Meta | null,
  ) {
    if (firstMeta) this.#metas.set(firstMeta.trace, firstMeta);
  }

  /** The meta of a trace if it is loaded; with `unmasked`, that of the trace without its mask. */
  getKnown(trace: string, unmasked = false): Meta | undefined {
    const own = this.#metas.get(trace);
    return unmasked && own ? this.#metas.get(own.unmasked ?? "") : own;
  }

  /** All loaded traces, except those without their mask. */
  listKnown(): readonly Meta[] {
    return [...this.#metas.values()].filter(({ origin }) => origin === null);
  }

  async loadMeta(trace: string): Promise<Meta> {
    const known = this.#metas.get(trace);
    if (known) return known;
    // Concurrent calls share one request.
    const pending = this.#pending.get(trace) ?? this.transport.json<Meta>(paths.meta(trace));
    this.#pending.set(trace, pending);
    try {
      const meta = await pending;
      this.#metas.set(trace, meta);
      return meta;
    } finally {
      this.#pending.delete(trace);
    }
  }

  getTexts(meta: Meta): TokenTexts {
    let texts = this.#texts.get(meta.trace);
    if (!texts) {
      texts = new TokenTexts(this.transport, meta);
      texts.onLoaded = this.onTextsLoaded;
      this.#texts.set(meta.trace, texts);
    }
    return texts;
  }

  /** The next token of a side with a text. */
  findToken(shown: { readonly meta: Meta; readonly layer: number } | null, side: Side, wanted: FindRequest): Promise<FindResult> {
    if (!shown) return Promise.resolve({ position: null, count: 0, index: 0 });
    const { text, after, backward, signal } = wanted;
    return this.transport.json<FindResult>(paths.find(shown.meta.trace, shown.layer, side, text, after, backward), signal);
  }
}
