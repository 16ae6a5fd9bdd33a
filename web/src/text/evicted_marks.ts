/** Strikes through tokens that are evicted from the KV cache. */

import { element } from "../panels/dom";
import { EvictionStore } from "../server/evicted_keys";
import type { TraceHead } from "../server/protocol";
import type { Transport } from "../server/transport";
import type { Eviction } from "../state";
import type { HighlightSet } from "./highlights";
import type { TextPage } from "./text_page";

export class EvictedMarks {
  /** What the line means. */
  readonly element = element("s", { class: "text-key", hidden: true }, "evicted");
  readonly #evictions: EvictionStore;
  #last: Parameters<EvictedMarks["show"]> | null = null;

  constructor(
    transport: Transport,
    private readonly marks: HighlightSet,
    signal: AbortSignal,
  ) {
    this.#evictions = new EvictionStore(transport, () => this.#last && this.show(...this.#last));
    signal.addEventListener("abort", () => this.#evictions.close());
  }

  /** Strike through tokens [from, to) of a page. */
  show(shown: TraceHead, page: TextPage, visible: readonly [number, number], eviction: Eviction | null): void {
    this.#last = [shown, page, visible, eviction];
    const { meta, layer, head } = shown;
    const evicted = this.#evictions.get({ trace: meta.trace, layer, head }, meta.layers[layer], eviction);
    this.element.hidden = evicted === null;
    const runs = evicted ? [...evicted.listRuns(...visible)] : [];
    this.marks.set("evicted", runs.flatMap(([start, stop]) => page.createRange(start, stop) ?? []));
  }
}
