/** Traces seen so far: what they are, and the texts of their tokens. */

import { paths, type FindResult, type Meta } from "./protocol";
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

  /** What a trace is, if it was asked before; with `whatIf`, its unmasked twin. */
  getKnown(trace: string, whatIf = false): Meta | undefined {
    const own = this.#metas.get(trace);
    return whatIf && own ? this.#metas.get(own.what_if ?? "") : own;
  }

  /** All that were asked, but for those without their mask. */
  listKnown(): readonly Meta[] {
    return [...this.#metas.values()].filter(({ origin }) => origin === null);
  }

  async loadMeta(trace: string): Promise<Meta> {
    const known = this.#metas.get(trace);
    if (known) return known;
    // However many ask meanwhile, the server is asked once.
    const asked = this.#pending.get(trace) ?? this.transport.json<Meta>(paths.meta(trace));
    this.#pending.set(trace, asked);
    try {
      const meta = await asked;
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

  /** The next query with a text. */
  findToken(shown: { readonly meta: Meta; readonly layer: number } | null, wanted: FindRequest): Promise<FindResult> {
    if (!shown) return Promise.resolve({ position: null, count: 0, index: 0 });
    const { text, after, backward, signal } = wanted;
    return this.transport.json<FindResult>(
      paths.find(shown.meta.trace, shown.layer, "query", text, after, backward),
      signal,
    );
  }
}
