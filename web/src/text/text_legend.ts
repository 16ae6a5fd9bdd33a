/** What shades and underlines mean, painted as the text is. */

import { element } from "../panels/dom";
import { getHighlightRegistry, HighlightSet, STEPS } from "./highlights";

/** A letter for each step. */
const SAMPLE = "strength";

export function createTextLegend(signal: AbortSignal): HTMLElement {
  return element(
    "div",
    { class: "text-legend" },
    createSample("out", "shaded: attends to", signal),
    createSample("in", "underlined: attended by", signal),
    element("span", { class: "soft" }, `weights ${STEPS[0]} to ${STEPS.at(-1)}+`),
  );
}

/** A label, and a sample with a letter for each step. */
export function createSample(name: string, label: string, signal: AbortSignal, limits = STEPS, sample = SAMPLE): HTMLElement {
  const marks = new HighlightSet(getHighlightRegistry());
  signal.addEventListener("abort", () => marks.clear());
  const node = document.createTextNode(sample);
  const createRange = (at: number): StaticRange =>
    new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: at + 1 });
  marks.setByWeight(name, limits.map((weight, at) => [createRange(at), weight] as const), limits);
  return element("span", { class: "text-key" }, label, element("span", { class: "steps", "aria-hidden": "true" }, node));
}
