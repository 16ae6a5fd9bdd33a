/** Underlines tokens by their surprise, where the model's predictions are known. */

import { setPressed, toggle } from "../panels/controls";
import { element } from "../panels/dom";
import { paths, type Predictions, type TraceHead } from "../server/protocol";
import { LatestRequest } from "../server/requests";
import type { Transport } from "../server/transport";
import { createSample } from "./text_legend";
import type { HighlightSet } from "./highlights";
import type { TextPage } from "./text_page";

/** In nats; the last one reached is the line. */
const SURPRISE_STEPS: readonly number[] = [2, 4, 6, 8];
const BLOCK = 1024;
const POLL_MILLISECONDS = 2000;

export class SurpriseMarks {
  readonly element: HTMLElement;
  readonly #switch = toggle("Surprise", "Underline tokens that the model did not expect", () => this.#toggle());
  readonly #legend: HTMLElement;
  readonly #words = element("span", { class: "soft", role: "status" });
  readonly #request = new LatestRequest();
  readonly #surprises = new Map<string, readonly (number | null)[] | string>();
  #isOn = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #last: readonly [TraceHead, TextPage, readonly [number, number]] | null = null;

  constructor(
    private readonly transport: Transport,
    private readonly marks: HighlightSet,
    signal: AbortSignal,
  ) {
    const nats = `${SURPRISE_STEPS[0]} to ${SURPRISE_STEPS.at(-1)}+ nats: `;
    this.#legend = createSample("surprise", nats, signal, SURPRISE_STEPS, "wavy");
    this.#legend.hidden = true;
    this.element = element("span", { class: "field" }, this.#switch, this.#words, this.#legend);
    signal.addEventListener("abort", () => this.#stop());
  }

  /** Underline tokens [from, to) of a page. */
  show(shown: TraceHead, page: TextPage, visible: readonly [number, number]): void {
    this.#last = [shown, page, visible];
    if (!this.#isOn) return this.marks.setByWeight("surprise", [], SURPRISE_STEPS);
    const { meta, layer } = shown;
    const keys = meta.layers[layer]?.keys ?? 0;
    const ranges: [StaticRange, number][] = [];
    let message = "";
    for (let block = Math.floor(visible[0] / BLOCK); block * BLOCK < visible[1]; block++) {
      const path = paths.predictions(meta.trace, block * BLOCK, Math.min(keys, (block + 1) * BLOCK));
      const found = this.#surprises.get(path);
      if (found === undefined) return this.#load(path);
      if (typeof found === "string") message = found;
      else
        found.forEach((value, index) => {
          const position = block * BLOCK + index;
          const isVisible = position >= visible[0] && position < visible[1];
          const range = isVisible && value !== null && value >= (SURPRISE_STEPS[0] ?? 0) ? page.createRange(position, position + 1) : null;
          if (range) ranges.push([range, value ?? 0]);
        });
    }
    this.#words.textContent = message;
    this.#legend.hidden = message !== "";
    this.marks.setByWeight("surprise", ranges, SURPRISE_STEPS);
  }

  #toggle(): void {
    this.#isOn = !this.#isOn;
    setPressed(this.#switch, this.#isOn);
    this.#legend.hidden = true;
    this.#words.textContent = "";
    if (!this.#isOn) this.#stop();
    if (this.#last) this.show(...this.#last);
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#request.cancel();
  }

  #load(path: string): void {
    this.#stop();
    this.#words.textContent = "The model is reading the text…";
    void this.#request.run(
      (signal) => this.transport.json<Predictions>(path, signal),
      ({ pending, problem, tokens }) => {
        if (pending) return (this.#timer = setTimeout(() => this.#load(path), POLL_MILLISECONDS));
        this.#surprises.set(path, problem ?? tokens.map(({ surprise }) => surprise));
        if (this.#last) this.show(...this.#last);
      },
      (message) => {
        this.#words.textContent = message;
      },
    );
  }
}
