/** The area that shows one form of the heads view at a time, with its controls and a hover card. */

import { element, replaceChildren } from "../panels/dom";
import { createHoverCard, type HoverCard } from "./hover_card";

export interface HeadsArea {
  readonly element: HTMLElement;
  /** The controls of the form that is shown. */
  readonly controls: HTMLElement;
  readonly card: HoverCard;
  show(part: { readonly element: HTMLElement; readonly controls?: HTMLElement }): void;
}

export function createHeadsArea(): HeadsArea {
  const area = element("div", { class: "heads-area" });
  const controls = element("span");
  const card = createHoverCard(area);
  return {
    ...{ element: area, controls, card },
    show(part) {
      if (part.element.parentElement === area) return;
      card.hide();
      replaceChildren(area, part.element, card.element);
      replaceChildren(controls, part.controls);
    },
  };
}
