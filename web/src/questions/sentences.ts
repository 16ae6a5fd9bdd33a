/** What is pinned, as a sentence. */

import { formatCount, formatMeasure, formatPercent, pluralize } from "../format_numbers";
import { formatTitle, formatToken } from "../paint/token_text";
import type { Layer, Side } from "../server/protocol";
import { countPositions, isMasked, type Link } from "./head_question";
import type { Positions } from "./parse_question";

/** A part of a sentence; those with a side are texts of tokens. */
export interface SentencePart {
  readonly text: string;
  readonly side?: Side;
}

/** What a head answers to a link: see HeadLinks. */
export interface LinkAnswer {
  readonly value: number | null;
  readonly position: number | null;
}

export type GetText = (side: Side, position: number) => string | undefined;
type Shape = Pick<Layer, "causal" | "cross" | "offset">;

/** "is gives 63% to cobalt, 5,887 tokens back"; without an answer, what is asked. */
export function describeLink(link: Link, answer: LinkAnswer | null, shape: Shape, getText: GetText): readonly SentencePart[] {
  const { query, key } = link;
  const name = (side: Side, positions: Positions): readonly SentencePart[] => namePositions(side, positions, getText);
  const one = (side: Side, position: number): readonly SentencePart[] => name(side, { first: position, last: position });
  if (query && key) {
    const [subject, object] = [name("query", query), name("key", key)];
    if (isMasked(link, shape)) return [...subject, say(" cannot attend to "), ...object, say(": it is masked")];
    if (!answer) return [...subject, say(" to "), ...object];
    if (answer.value === null) return [...subject, say(" to "), ...object, say(": no weight")];
    const share = formatPercent(answer.value);
    const isOne = query.first === query.last && key.first === key.last;
    const distance = isOne && !shape.cross ? query.first + shape.offset - key.first : null;
    if (distance === 0) return [...subject, say(` gives ${share} to itself`)];
    const gives = query.first === query.last ? ` gives ${share} to ` : ` give ${share} on average to `;
    return [...subject, say(gives), ...object, say(distance === null ? "" : `, ${describeDistance(distance)}`)];
  }
  const [side, positions]: readonly [Side, Positions | null] = query ? ["query", query] : ["key", key];
  if (!positions) return [];
  const subject = name(side, positions);
  if (!answer) return subject;
  const { value, position } = answer;
  if (value === null || position === null) return [...subject, say(": no weights")];
  if (side === "key") {
    const receives = positions.first === positions.last ? " receives " : " receive ";
    return [...subject, say(`${receives}${formatMeasure(value)} in all, most from `), ...one("query", position)];
  }
  const distance = positions.first + shape.offset - position;
  const isOne = positions.first === positions.last;
  const attends = isOne ? " attends most to " : " attend most to ";
  if (isOne && !shape.cross && distance === 0) return [...subject, say(`${attends}itself: ${formatPercent(value)}`)];
  const where = shape.cross || !isOne ? "" : `, ${describeDistance(distance)}`;
  return [...subject, say(attends), ...one("key", position), say(`: ${formatPercent(value)}${where}`)];
}

/** The plain text of a sentence. */
export function joinParts(parts: readonly SentencePart[]): string {
  return parts.map(({ text }) => text).join("");
}

/** A token by its text, or by its position where it has none; of a span, its first and last tokens. */
export function namePositions(side: Side, { first, last, runs }: Positions, getText: GetText): readonly SentencePart[] {
  if (runs !== undefined) return [{ text: `the region of ${pluralize(countPositions({ first, last, runs }), "patch", "patches")}`, side }];
  if (first === last) return [nameToken(side, first, getText)];
  return [
    say(`the ${pluralize(last - first + 1, "token")} from `),
    nameToken(side, first, getText),
    say(` (${formatCount(first)}) to `),
    nameToken(side, last, getText),
    say(` (${formatCount(last)})`),
  ];
}

function nameToken(side: Side, position: number, getText: GetText): SentencePart {
  const text = getText(side, position);
  if (text === undefined) return { text: `${side} ${formatCount(position)}`, side };
  return { text: text.trim() === "" ? formatToken(text) : formatTitle(text, 32), side };
}

function describeDistance(distance: number): string {
  return distance > 0 ? `${pluralize(distance, "token")} back` : `${pluralize(-distance, "token")} ahead`;
}

function say(text: string): SentencePart {
  return { text };
}
