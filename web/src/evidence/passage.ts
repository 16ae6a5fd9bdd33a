/** A few tokens with the text around them: "… her password is [cobalt] and she never …" (keyword in context). */

import { formatRunningText, formatToken, splitGraphemes } from "../paint/token_text";

export interface Passage {
  readonly before: string;
  readonly marked: string;
  readonly after: string;
}

/** The texts of a side; undefined while one is loading or unknown. */
export type GetText = (position: number) => string | undefined;

const MAX_TOKENS = 24;
const MAX_MARKED = 120;

/**
 * Tokens `first` to `last` marked, with at most `width` characters on each side, cut at words where possible. Null
 * while the text of the first token is not known.
 */
export function findPassage(getText: GetText, first: number, last: number, width: number): Passage | null {
  if (getText(first) === undefined) return null;
  let whole = "";
  for (let position = first; position <= last && whole.length <= MAX_MARKED; position++) whole += getText(position) ?? "";
  // White space before a word is not marked; white space alone is, and is made visible.
  const isBlank = whole.trim() === "";
  const lead = isBlank ? "" : (/^\s+/u.exec(whole)?.[0] ?? "");
  return {
    before: cutStart(join(collect(getText, first, -1, width) + lead), width),
    marked: isBlank ? formatToken(whole) : cutEnd(join(whole.slice(lead.length)), MAX_MARKED),
    after: cutEnd(join(collect(getText, last, 1, width)), width),
  };
}

/** The text next to a position, in one direction, of about this many characters. */
function collect(getText: GetText, from: number, step: 1 | -1, width: number): string {
  let text = "";
  for (let count = 1; count <= MAX_TOKENS && text.length <= width; count++) {
    const next = from + step * count < 0 ? undefined : getText(from + step * count);
    if (next === undefined) break;
    text = step > 0 ? text + next : next + text;
  }
  return text;
}

/** On one line, with what is invisible made visible. */
function join(text: string): string {
  return text === "" ? "" : formatRunningText(text.replace(/\s+/gu, " "));
}

function cutEnd(text: string, width: number): string {
  const all = splitGraphemes(text);
  if (all.length <= width) return text;
  const kept = all.slice(0, width).join("");
  const end = kept.lastIndexOf(" ");
  return `${all[width] !== " " && end > width / 2 ? kept.slice(0, end) : kept}…`;
}

function cutStart(text: string, width: number): string {
  const all = splitGraphemes(text);
  if (all.length <= width) return text;
  const kept = all.slice(-width).join("");
  const start = kept.indexOf(" ");
  return `…${all[all.length - width - 1] !== " " && start >= 0 && start < width / 2 ? kept.slice(start + 1) : kept}`;
}
