/** Shades tokens by the attention that they receive from all queries; 1 is what a token receives on average. */

import { TILE_SIZE, ZoomPlan } from "../geometry/zoom_plan";
import { FloatStore } from "../server/float_store";
import { paths, type TraceHead } from "../server/protocol";
import type { Transport } from "../server/transport";
import { element } from "../panels/dom";
import { createSample } from "./text_legend";
import type { HighlightSet } from "./highlights";
import type { TextPage } from "./text_page";

/** Of the attention received; the last one reached is the shade. */
const RECEIVED_STEPS: readonly number[] = [0.5, 1, 2, 4, 8, 16, 32, 64];

export class ReceivedAttention {
  readonly #floats: FloatStore;
  #last: readonly [TraceHead, TextPage, readonly [number, number] | null] | null = null;

  constructor(
    private readonly transport: Transport,
    private readonly marks: HighlightSet,
    signal: AbortSignal,
  ) {
    this.#floats = new FloatStore(transport, () => this.#last && this.show(...this.#last));
    signal.addEventListener("abort", () => this.#floats.close());
  }

  /** Shade tokens [from, to) of a page; null shades nothing. */
  show(shown: TraceHead, page: TextPage, visible: readonly [number, number] | null): void {
    this.#last = [shown, page, visible];
    const ranges: [StaticRange, number][] = [];
    const { queries = 1, keys = 1 } = shown.meta.layers[shown.layer] ?? {};
    const plan = new ZoomPlan(queries, keys);
    const [from, to] = visible ?? [0, 0];
    for (let block = Math.floor(from / TILE_SIZE); block * TILE_SIZE < to; block++) {
      const getReceived = this.#loadBlock(shown, plan, block);
      for (let position = Math.max(from, block * TILE_SIZE); position < Math.min(to, (block + 1) * TILE_SIZE); position++) {
        const value = getReceived(position);
        const range = value >= (RECEIVED_STEPS[0] ?? 0) ? page.createRange(position, position + 1) : null;
        if (range) ranges.push([range, value]);
      }
    }
    this.marks.setByWeight("received", ranges, RECEIVED_STEPS);
  }

  /** The attention received by the keys of a block; NaN until it is loaded. */
  #loadBlock({ meta, layer, head }: TraceHead, plan: ZoomPlan, block: number): (key: number) => number {
    const getPath = (z: number): string =>
      paths.marginal(meta.trace, layer, head, "received", z, Math.floor(block / plan.getStride(z)));
    let z = plan.deepest;
    // A saved page may have coarser levels alone.
    while (z > 0 && this.transport.hasResponse?.(getPath(z)) === false) z--;
    const [stride, floats] = [plan.getStride(z), this.#floats.get(getPath(z))];
    return (key) => floats?.values[Math.floor(key / stride) % TILE_SIZE] ?? NaN;
  }
}

export function createReceivedLegend(signal: AbortSignal): HTMLElement {
  return element(
    "p",
    { class: "received-legend" },
    createSample("received", "Nothing is pinned. Shaded: attention received", signal, RECEIVED_STEPS),
    ` from all queries, ${RECEIVED_STEPS[0]} to ${RECEIVED_STEPS.at(-1)}+ times the average token.`,
  );
}
