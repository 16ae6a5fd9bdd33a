/**
 * The middle of the page: one map or two, a map under a text box with its randomly initialised copy, or another
 * view; and a message when there is nothing to show.
 */

import { element, replaceChildren } from "./dom";
import type { SentenceView } from "./sentence_view";
import type { State } from "../state";
import type { Comparison } from "./view_context";

export interface CentrePanelParts {
  /** The name of the head and what is pinned. */
  readonly title: HTMLElement;
  readonly map: HTMLElement;
  readonly comparison: Comparison;
  readonly sentence: SentenceView;
  readonly can_generate: boolean;
  /** The element of the views other than the map. */
  readonly views: HTMLElement;
  readonly table: HTMLElement;
}

export class CentrePanel {
  readonly element: HTMLElement;
  readonly #message = element("p", { class: "map-words", role: "status", hidden: true });
  readonly #slot = element("div", { class: "map-slot" });
  readonly #pair: HTMLElement;

  constructor(private readonly parts: CentrePanelParts) {
    const { title, comparison, sentence, table, views } = parts;
    this.#pair = element("div", { class: "map-pair" }, this.#slot, comparison.secondSlot);
    this.element = element(
      "main",
      { class: "centre", "aria-label": "Map" },
      sentence.form,
      this.#message,
      title,
      comparison.bar,
      this.#pair,
      sentence.maps,
      sentence.below,
      views,
      table,
    );
  }

  /** `tokens` is the length of the shown text; null when none is shown. */
  arrange({ view }: State, tokens: number | null): void {
    const { sentence, map, views, can_generate } = this.parts;
    const typing = view === "sentence";
    sentence.form.hidden = !typing;
    sentence.maps.hidden = !typing || tokens === null;
    sentence.below.hidden = !typing || tokens === null || !can_generate;
    this.#pair.hidden = view !== "map" || tokens === null;
    views.hidden = tokens === null;
    // Both views share one map, with its pins, place and loaded tiles.
    const slot = typing ? sentence.slot : this.#slot;
    if (map.parentElement !== slot) replaceChildren(slot, map);
    sentence.setTokenCount(typing ? tokens : null);
    this.element.setAttribute("aria-label", NAMES[view]);
    this.showMessage(null);
  }

  showMessage(text: string | null): void {
    this.#message.textContent = text ?? "";
    this.#message.hidden = text === null;
  }
}

const NAMES = { map: "Map", text: "Text", heads: "Heads", picture: "Picture", sentence: "Typed sentence" } as const;
