/** The middle of the page: the map alone, or under a text box and beside its untrained twin; and words when there is none. */

import { element, replaceChildren } from "./dom";
import type { SentenceView } from "./sentence";
import type { State } from "../state";

export class Centre {
  readonly element: HTMLElement;
  readonly #words = element("p", { class: "map-words", role: "status", hidden: true });
  readonly #slot = element("div", { class: "map-slot" });

  constructor(
    private readonly map: HTMLElement,
    private readonly sentence: SentenceView,
    private readonly generates: boolean,
    table: HTMLElement,
  ) {
    const { form, stage, below } = sentence;
    this.element = element(
      "main",
      { class: "centre", "aria-label": "Map" },
      form,
      this.#words,
      this.#slot,
      stage,
      below,
      table,
    );
  }

  /** `tokens` is the length of the text on show; null when nothing is. */
  arrange({ view }: State, tokens: number | null): void {
    const typing = view === "sentence";
    this.sentence.form.hidden = !typing;
    this.sentence.stage.hidden = !typing || tokens === null;
    this.sentence.below.hidden = !typing || tokens === null || !this.generates;
    this.#slot.hidden = typing || tokens === null;
    // One map for both, so that pins, place and what was read go along.
    const slot = typing ? this.sentence.slot : this.#slot;
    if (this.map.parentElement !== slot) replaceChildren(slot, this.map);
    this.sentence.measured(typing ? tokens : null);
    this.say(null);
  }

  say(text: string | null): void {
    this.#words.textContent = text ?? "";
    this.#words.hidden = text === null;
  }
}
