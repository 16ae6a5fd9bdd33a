/** The label of a head: a shape and a name. */

import { element } from "../panels/dom";

/** One shape per known label, so that colour is not the only difference; none of them can become an emoji. */
const SHAPES: Readonly<Record<string, string>> = {
  retrieval: "◎",
  induction: "★",
  duplicate: "◆",
  agreement: "◇",
  coreference: "☆",
  previous: "◄",
  next: "►",
  self: "■",
  local: "▲",
  sink: "▼",
  streaming: "≡",
  broad: "□",
  mixed: "○",
};

export const MIXED_SHAPE = SHAPES["mixed"];

export function getLabelShape(label: string | undefined): string {
  return SHAPES[label ?? "mixed"] ?? "●";
}

/** `meaning` is its tooltip. */
export function badge(label: string, meaning: string): HTMLElement {
  const mark = element("span", { "aria-hidden": "true" }, getLabelShape(label));
  return element("span", { class: "head-label", title: meaning }, mark, ` ${label}`);
}
