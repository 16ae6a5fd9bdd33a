/** Traces seen so far: what they are, and the texts of their tokens. */

import type { Wanted } from "../panels/finder";
import { paths, type Found, type Meta } from "./protocol";
import { TokenTexts } from "./token_texts";
import type { Transport } from "./transport";

export class Traces {
  readonly #metas = new Map<string, Meta>();
  readonly #asked = new Map<string, Promise<Meta>>();
  readonly #texts = new Map<string, TokenTexts>();

  constructor(
    private readonly transport: Transport,
    private readonly named: () => void,
    first: Meta | null,
  ) {
    if (first) this.#metas.set(first.trace, first);
  }

  /** What a trace is, if it was asked before; with `whatIf`, its unmasked twin. */
  known(trace: string, whatIf = false): Meta | undefined {
    const own = this.#metas.get(trace);
    return whatIf && own ? this.#metas.get(own.what_if ?? "") : own;
  }

  /** All that were asked, but for those without their mask. */
  seen(): readonly Meta[] {
    return [...this.#metas.values()].filter(({ origin }) => origin === null);
  }

  async meta(trace: string): Promise<Meta> {
    const known = this.#metas.get(trace);
    if (known) return known;
    // However many ask meanwhile, the server is asked once.
    const asked = this.#asked.get(trace) ?? this.transport.json<Meta>(paths.meta(trace));
    this.#asked.set(trace, asked);
    try {
      const meta = await asked;
      this.#metas.set(trace, meta);
      return meta;
    } finally {
      this.#asked.delete(trace);
    }
  }

  textsOf(meta: Meta): TokenTexts {
    let texts = this.#texts.get(meta.trace);
    if (!texts) {
      texts = new TokenTexts(this.transport, meta);
      texts.onLoaded = this.named;
      this.#texts.set(meta.trace, texts);
    }
    return texts;
  }

  /** The next query with a text. */
  find(shown: { readonly meta: Meta; readonly layer: number } | null, wanted: Wanted): Promise<Found> {
    if (!shown) return Promise.resolve({ position: null, count: 0, index: 0 });
    const { text, after, backward, signal } = wanted;
    return this.transport.json<Found>(
      paths.find(shown.meta.trace, shown.layer, "query", text, after, backward),
      signal,
    );
  }
}
