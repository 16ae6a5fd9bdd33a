/** A card with the labels and scores of the head under the pointer. */

import type { Box } from "../geometry/box";
import { formatMeasure } from "../format_numbers";
import { element, replaceChildren } from "../panels/dom";
import { badge } from "./label_badge";
import { formatScoreName, type ScoredHead } from "./scored_heads";

const WIDTH = 280;

export interface HoverCard {
  readonly element: HTMLElement;
  /** Show a head beside `box`; `head` is undefined while it has no scores. */
  show(box: Box, name: string, head: ScoredHead | undefined, note?: string): void;
  hide(): void;
}

/** `area` contains the boxes of heads. */
export function createHoverCard(area: HTMLElement): HoverCard {
  const card = element("div", { class: "heads-card", "aria-hidden": "true", hidden: true });
  return {
    element: card,
    show(box, name, head, note = "") {
      card.hidden = false;
      const scores = Object.entries(head?.scores ?? {}).map(([score, value]) =>
        element("div", {}, element("dt", {}, formatScoreName(score)), element("dd", {}, formatMeasure(value))),
      );
      replaceChildren(
        card,
        element("strong", {}, name),
        note,
        element("p", {}, ...(head ? head.labels.map((label) => badge(label, "")) : ["not scored yet"])),
        element("dl", { class: "facts" }, ...scores),
      );
      placeCard(card, area, box);
    },
    hide() {
      card.hidden = true;
    },
  };
}

/** Beside the head, on the side that has room. */
function placeCard(card: HTMLElement, area: HTMLElement, box: Box): void {
  const right = box.left + box.width + 8;
  const left = right + WIDTH > area.clientWidth ? Math.max(0, box.left - WIDTH - 8) : right;
  const top = Math.max(0, Math.min(box.top, area.clientHeight - card.offsetHeight - 4));
  Object.assign(card.style, { left: `${left}px`, top: `${top}px`, width: `${WIDTH}px` });
}
