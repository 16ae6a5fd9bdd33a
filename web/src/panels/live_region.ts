/** What a screen reader is told, politely and not too often. */

import { element } from "./dom";
import { ordinal, plain } from "../format_numbers";
import { visible } from "../paint/token_text";

export interface LiveRegion {
  readonly element: HTMLElement;
  /** `before` is said whatever comes after it. */
  say(text: string, before?: boolean): void;
}

/** Panning with a held key would otherwise queue a sentence for every step. */
const PAUSE = 250;

export function createLiveRegion(signal: AbortSignal): LiveRegion {
  const region = element("div", {
    class: "visually-hidden",
    role: "status",
    "aria-live": "polite",
    "aria-atomic": "true",
  });
  let waiting: ReturnType<typeof setTimeout> | undefined;
  let first = "";
  signal.addEventListener("abort", () => clearTimeout(waiting));
  return {
    element: region,
    say(text, before = false) {
      clearTimeout(waiting);
      if (before) first = `${text} `;
      waiting = setTimeout(() => {
        region.textContent = before ? text : first + text;
        first = "";
      }, PAUSE);
    },
  };
}

export interface SpokenCell {
  readonly query: number;
  readonly key: number;
  readonly queryText?: string | undefined;
  readonly keyText?: string | undefined;
  /** null: the mask forbids it. undefined: not known yet. */
  readonly value: number | null | undefined;
  readonly exact: boolean;
  readonly rank?: number | undefined;
  /** How many keys this query may see. */
  readonly seen?: number | undefined;
}

/** "query 512 'cat', key 12 'The', weight 0.034, 2nd of 513 (of those seen)" */
export function spokenCell(cell: SpokenCell): string {
  const parts = [named("query", cell.query, cell.queryText), named("key", cell.key, cell.keyText)];
  if (cell.value === null) parts.push("masked: this query may not look there");
  else if (cell.value !== undefined) parts.push(`weight ${cell.exact ? "" : "about "}${plain(cell.value)}`);
  if (cell.rank !== undefined && cell.seen !== undefined)
    parts.push(`${ordinal(cell.rank)} of ${cell.seen} (of those seen)`);
  return parts.join(", ");
}

export function named(kind: string, position: number, text: string | undefined): string {
  return text === undefined ? `${kind} ${position}` : `${kind} ${position} '${visible(text)}'`;
}

/**
 * "application" and not "img": the map takes keys of its own, and a screen reader hands keys on only there. There is
 * nothing inside to lose by it; the table of the strongest links holds the same content for reading.
 */
export function describeMap(map: HTMLElement): void {
  map.tabIndex = 0;
  map.setAttribute("role", "application");
  map.setAttribute(
    "aria-description",
    "Rows are queries, columns are keys. Arrows move, plus and minus zoom, full stop and comma walk through the queries, " +
      "Enter pins a cell. Press r for a table of the strongest links in view, question mark for all keys.",
  );
}
