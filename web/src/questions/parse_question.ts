/** What a text in the Ask box means. */

import { FILTER_PATTERN } from "../state";

/** Tokens, both ends included; a negative position counts from the end. */
export interface Positions {
  readonly first: number;
  readonly last: number;
  /** The tokens between them that are meant, where these are not all; see `State.region`. */
  readonly runs?: string;
}

/** One side of a link: positions, or words of the text. */
export type LinkSide = Positions | { readonly words: string };

export type ParsedQuestion =
  | { readonly kind: "empty" }
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "positions"; readonly positions: Positions }
  | { readonly kind: "head"; readonly layer: number; readonly head: number }
  /** At least one of the sides is given. */
  | { readonly kind: "link"; readonly query: LinkSide | null; readonly key: LinkSide | null }
  /** The beginning of a label, such as "induction". */
  | { readonly kind: "label"; readonly label: string }
  /** A condition on a score, as in `State.filter`. */
  | { readonly kind: "score"; readonly filter: string }
  | { readonly kind: "command"; readonly text: string };

const ARROW = /\s*(?:->|→)\s*/;
const POSITIONS = /^(-?\d{1,7})(?:\s*\.\.\s*(-?\d{1,7}))?$/;
const HEAD = /^(?:L(\d{1,4})\s*H(\d{1,4})|(\d{1,4})\.(\d{1,4}))$/i;

export function parseQuestion(typed: string): ParsedQuestion {
  const text = typed.trim();
  if (text === "") return { kind: "empty" };
  if (text.startsWith(">")) return { kind: "command", text: text.slice(1).trim() };
  const head = HEAD.exec(text);
  if (head) return { kind: "head", layer: Number(head[1] ?? head[3]), head: Number(head[2] ?? head[4]) };
  const label = /^label\s*:\s*([a-z]*)$/i.exec(text);
  if (label) return { kind: "label", label: (label[1] ?? "").toLowerCase() };
  // The reader sees "mean distance"; the name of the score is mean_distance.
  const filter = text.replace(/\s*([<>]=?)\s*/, "$1").replaceAll(" ", "_").toLowerCase();
  if (FILTER_PATTERN.test(filter)) return { kind: "score", filter };
  const sides = text.split(ARROW);
  if (sides.length === 2 && sides.some((side) => side !== ""))
    return { kind: "link", query: parseSide(sides[0] ?? ""), key: parseSide(sides[1] ?? "") };
  const positions = parsePositions(text);
  return positions ? { kind: "positions", positions } : { kind: "text", text };
}

function parseSide(text: string): LinkSide | null {
  return text === "" ? null : (parsePositions(text) ?? { words: text });
}

function parsePositions(text: string): Positions | null {
  // A count in groups of three, as the page writes it, is one number.
  const found = POSITIONS.exec(text.replace(/(?<=\d),(?=\d{3}(?!\d))/g, ""));
  if (!found) return null;
  const first = Number(found[1]);
  return { first, last: found[2] === undefined ? first : Number(found[2]) };
}

/** The tokens of a text of this length, first before last; null where it does not have them. */
export function resolvePositions({ first, last }: Positions, length: number): Positions | null {
  const [start, stop] = [first, last].map((position) => (position < 0 ? position + length : position)) as [number, number];
  return start >= 0 && stop >= start && stop < length ? { first: start, last: stop } : null;
}

/** A condition on a score; null where the text is none. */
export function parseFilter(filter: string): { readonly name: string; readonly rises: boolean; test(value: number): boolean } | null {
  const [, name = "", operator = "", limit = ""] = FILTER_PATTERN.exec(filter) ?? [];
  if (name === "") return null;
  const bound = Number(limit);
  const tests: Readonly<Record<string, (value: number) => boolean>> = {
    "<": (value) => value < bound,
    "<=": (value) => value <= bound,
    ">": (value) => value > bound,
    ">=": (value) => value >= bound,
  };
  return { name, rises: operator.startsWith("<"), test: tests[operator] ?? (() => false) };
}
