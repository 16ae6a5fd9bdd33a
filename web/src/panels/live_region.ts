/** Announcements for screen readers, at most a few per second. */

import { element } from "./dom";
import { formatOrdinal, formatWeight } from "../format_numbers";
import { formatToken } from "../paint/token_text";

export interface LiveRegion {
  readonly element: HTMLElement;
  /** With `before`, the text is announced even if another one follows. */
  announce(text: string, before?: boolean): void;
}

/** Otherwise panning with a held key would announce every step. */
const PAUSE_MILLISECONDS = 250;

export function createLiveRegion(signal: AbortSignal): LiveRegion {
  const region = element("div", {
    class: "visually-hidden",
    role: "status",
    "aria-live": "polite",
    "aria-atomic": "true",
  });
  let timer: ReturnType<typeof setTimeout> | undefined;
  let prefix = "";
  signal.addEventListener("abort", () => clearTimeout(timer));
  return {
    element: region,
    announce(text, before = false) {
      clearTimeout(timer);
      if (before) prefix = `${text} `;
      timer = setTimeout(() => {
        region.textContent = before ? text : prefix + text;
        prefix = "";
      }, PAUSE_MILLISECONDS);
    },
  };
}

export interface CellDescription {
  readonly query: number;
  readonly key: number;
  readonly queryText?: string | undefined;
  readonly keyText?: string | undefined;
  /** null: masked. undefined: not known yet. */
  readonly value: number | null | undefined;
  readonly exact: boolean;
  readonly rank?: number | undefined;
  /** How many keys are not masked for this query. */
  readonly seen?: number | undefined;
}

/** "query 512 'cat', key 12 'The', weight 0.034, 2nd of 513 visible keys" */
export function describeCell(cell: CellDescription): string {
  const parts = [describeToken("query", cell.query, cell.queryText), describeToken("key", cell.key, cell.keyText)];
  if (cell.value === null) parts.push("masked: this query cannot attend to this key");
  else if (cell.value !== undefined) parts.push(`weight ${cell.exact ? "" : "about "}${formatWeight(cell.value)}`);
  if (cell.rank !== undefined && cell.seen !== undefined)
    parts.push(`${formatOrdinal(cell.rank)} of ${cell.seen} visible keys`);
  return parts.join(", ");
}

export function describeToken(kind: string, position: number, text: string | undefined): string {
  return text === undefined ? `${kind} ${position}` : `${kind} ${position} '${formatToken(text)}'`;
}

/**
 * "application" instead of "img": the map handles keys, which screen readers pass on only then. Nothing inside is
 * lost by it; the table of the strongest links has the same content.
 */
export function setMapDescription(map: HTMLElement): void {
  map.tabIndex = 0;
  map.setAttribute("role", "application");
  map.setAttribute(
    "aria-description",
    "Rows are queries, columns are keys. Arrows move, plus and minus zoom, full stop and comma step through the queries, " +
      "Enter pins a cell. Press r for a table of the strongest links in view, question mark for all keys.",
  );
}
