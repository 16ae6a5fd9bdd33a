/** The area that shows one form of the heads view at a time, with its controls and a hover card. */

import { element, replaceChildren } from "../panels/dom";
import { createHoverCard, type HoverCard } from "./hover_card";

export interface HeadsStage {
  readonly element: HTMLElement;
  /** The controls of the form that is shown. */
  readonly controls: HTMLElement;
  readonly card: HoverCard;
  show(part: { readonly element: HTMLElement; readonly controls?: HTMLElement }): void;
}

export function createHeadsStage(): HeadsStage {
  const stage = element("div", { class: "heads-stage" });
  const controls = element("span");
  const card = createHoverCard(stage);
  return {
    ...{ element: stage, controls, card },
    show(part) {
      if (part.element.parentElement === stage) return;
      card.hide();
      replaceChildren(stage, part.element, card.element);
      replaceChildren(controls, part.controls);
    },
  };
}
