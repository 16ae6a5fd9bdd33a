/** What shades and underlines mean, painted as the text is. */

import { element } from "../panels/dom";
import { getHighlightRegistry, HighlightSet, STEPS } from "./highlights";

/** A letter for each step. */
const SAMPLE = "strength";

export function createTextLegend(signal: AbortSignal): HTMLElement {
  const marks = new HighlightSet(getHighlightRegistry());
  signal.addEventListener("abort", () => marks.clear());
  const createKey = (name: string, label: string): HTMLElement => {
    const node = document.createTextNode(SAMPLE);
    const createRange = (at: number): StaticRange =>
      new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: at + 1 });
    marks.setByWeight(name, STEPS.map((weight, at) => [createRange(at), weight] as const));
    return element("span", { class: "text-key" }, label, element("span", { class: "steps", "aria-hidden": "true" }, node));
  };
  return element(
    "div",
    { class: "text-legend" },
    createKey("out", "shaded: attends to"),
    createKey("in", "underlined: attended by"),
    element("span", { class: "soft" }, `weights ${STEPS[0]} to ${STEPS.at(-1)}+`),
  );
}
