/** What shades and underlines mean, painted as the text is. */

import { element } from "../panels/dom";
import { highlights, Marks, STEPS } from "./highlights";

/** A letter for each step. */
const SAMPLE = "strength";

export function createLegend(signal: AbortSignal): HTMLElement {
  const marks = new Marks(highlights());
  signal.addEventListener("abort", () => marks.clear());
  const key = (name: string, says: string): HTMLElement => {
    const node = document.createTextNode(SAMPLE);
    const range = (at: number): StaticRange =>
      new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: at + 1 });
    marks.weigh(name, STEPS.map((weight, at) => [range(at), weight] as const));
    return element("span", { class: "text-key" }, says, element("span", { class: "steps", "aria-hidden": "true" }, node));
  };
  return element(
    "div",
    { class: "text-legend" },
    key("out", "shaded: looks at"),
    key("in", "underlined: looked at by"),
    element("span", { class: "soft" }, `weights ${STEPS[0]} to ${STEPS.at(-1)}+`),
  );
}
