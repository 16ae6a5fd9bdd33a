/**
 * Lays out token texts as paragraphs, with the start of each token.
 *
 * In: untrusted token texts. Out: one string per paragraph, and offsets of tokens in what is
 * shown: control characters are written out and bytes of a character are joined, so lengths are not those of the tokens.
 * Memory: the text once, and four bytes per token.
 */

import { formatRunningText, splitGraphemes } from "../paint/token_text";

export interface TextLayout {
  readonly paragraphs: readonly string[];
  /** The first token of each paragraph, and after the last one the number of tokens. */
  readonly begins: readonly number[];
  /** Paragraphs that continue the one before, which was too long. */
  readonly continued: ReadonlySet<number>;
  /** Where each token begins in all paragraphs put together, and the end. Tokens of one character begin alike. */
  readonly starts: Uint32Array;
}

const MAX_TOKENS = 2000;
/** A paragraph that is far too long is cut even where no word ends. */
const EXTRA_TOKENS = 200;
const MAX_PARAGRAPHS = 4096;
/** A line break is a token too, and needs an invisible character that can be highlighted. */
const LINE_END = "\u00a0";
const LINE_ENDS = /((?:\r?\n)+)/;
const BYTES = /((?:\\x[89a-f][0-9a-f])+)/;
/** What an accent may follow: a letter with at most three accents. */
const BASE = /\p{L}\p{M}{0,3}$/u;

/** `breaks` are tokens that begin a paragraph in any case. */
export function layOutText(texts: readonly string[], breaks: ReadonlySet<number> = new Set()): TextLayout {
  const starts = new Uint32Array(texts.length + 1);
  const paragraphs: string[] = [];
  const begins = [0];
  const continued = new Set<number>();
  /** Tokens that show the same wherever they stand, which most do. */
  const plain = new Map<string, string>();
  // Many short lines share a paragraph: a page of a hundred thousand elements would be slow.
  const least = Math.ceil(texts.length / MAX_PARAGRAPHS);
  let text = "";
  let before = 0;
  let begin = 0;
  /** Line breaks since the last visible character. */
  let lines = 0;

  const endLines = (): void => {
    text += "\n".repeat(Math.min(lines, 2));
    lines = 0;
  };
  /** Before a token that begins with something to see: another paragraph, or the lines that have ended. */
  const beginParagraph = (token: number, follows: string): void => {
    if (lines === 0 && token - begin < MAX_TOKENS) return;
    const length = token - begin;
    const room = lines > 0 || follows.startsWith(" ") ? MAX_TOKENS : MAX_TOKENS + EXTRA_TOKENS;
    if (length < room && (lines < 2 || length < least)) return endLines();
    if (lines < 2) continued.add(begins.length);
    endParagraph(token);
  };
  const endParagraph = (token: number): void => {
    begins.push((begin = token));
    paragraphs.push(text);
    before += text.length;
    text = "";
    lines = 0;
  };
  /** Accents alone belong to the letter before them. */
  const isCombining = (part: string): boolean => /^\p{M}+$/u.test(part) && BASE.test(text.slice(-4));
  const write = (part: string): void => {
    const shown = formatRunningText(part);
    text += shown.startsWith("◌") && BASE.test(text.slice(-4)) ? shown.slice(1) : shown;
  };
  const writeLines = (whole: string): void => {
    for (const part of whole.split(LINE_ENDS).filter((found) => found !== "")) {
      if (part.endsWith("\n")) {
        text += LINE_END;
        lines += part.split("\n").length - 1;
      } else {
        endLines();
        write(part);
      }
    }
  };
  /** Tokens [from, to) of bytes of characters. A token that begins inside one is shown with the one before. */
  const writeBytes = (from: number, to: number): void => {
    let [token, begin, at] = [from, 0, 0];
    for (const [length, character] of splitCharacters(texts.slice(from, to).join(""))) {
      for (; token < to && begin < at + length; token++) {
        starts[token] = begin === at && !isCombining(character) ? before + text.length : (starts[token - 1] ?? 0);
        begin += (texts[token] ?? "").length;
      }
      write(character);
      at += length;
    }
  };

  for (let token = 0; token < texts.length; token++) {
    const whole = texts[token] ?? "";
    const known = plain.get(whole);
    if (breaks.has(token) && token > begin) endParagraph(token);
    else if (known !== undefined || !/^\r?\n/.test(whole)) beginParagraph(token, whole);
    starts[token] = before + text.length;
    if (known !== undefined) text += known;
    else if (whole.includes("\n")) writeLines(whole);
    else if (isFragment(whole) && isFragment(texts[token + 1])) {
      const from = token;
      while (isFragment(texts[token + 1])) token += 1;
      writeBytes(from, token + 1);
    } else if (/^\p{M}/u.test(whole)) {
      if (isCombining(whole)) starts[token] = starts[token - 1] ?? 0;
      write(whole);
    } else {
      const shown = formatRunningText(whole);
      plain.set(whole, shown);
      text += shown;
    }
  }
  starts[texts.length] = before + text.length;
  if (texts.length > 0) {
    paragraphs.push(text);
    begins.push(texts.length);
  }
  return { paragraphs, begins, continued, starts };
}

/** The characters of a text with bytes written as "\xf0\x9f", and how long each is there. */
function splitCharacters(text: string): [length: number, character: string][] {
  return text.split(BYTES).flatMap((part, index) => {
    const whole = index % 2 === 1 ? decodeBytes(part) : null;
    return splitGraphemes(whole ?? part).map((one): [number, string] => [
      // Every byte is three signs in a URL, and four in the text of a token.
      whole === null ? one.length : (encodeURIComponent(one).length / 3) * 4,
      one,
    ]);
  });
}

/** Whether a token has bytes that make no character by themselves. */
function isFragment(text = ""): boolean {
  const bytes = text.includes("\\x") ? BYTES.exec(text) : null;
  return bytes?.[1] !== undefined && decodeBytes(bytes[1]) === null;
}

function decodeBytes(bytes: string): string | null {
  try {
    return decodeURIComponent(bytes.replaceAll("\\x", "%"));
  } catch {
    return null;
  }
}

/** The tokens that share a place with one: itself, or all that make up its character; [first, end). */
export function getCharacterTokens({ starts }: TextLayout, token: number): [number, number] {
  let [first, end] = [token, token + 1];
  while (first > 0 && starts[first - 1] === starts[token]) first -= 1;
  while (end < starts.length - 1 && starts[end] === starts[token]) end += 1;
  return [first, end];
}

/** The last index whose value is at most this; values increase and begin with the smallest. */
export function findLastAtMost(values: ArrayLike<number>, wanted: number): number {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((values[middle] ?? Infinity) <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}

export interface LineBox {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

/**
 * The token in [from, to) whose box holds a point, or null. Lines go down the page, so the line is searched for; along
 * it, in whatever direction it runs, every token is looked at. `slack` is half the space between two lines.
 */
export function findTokenAt(
  [from, to]: readonly [number, number],
  [x, y]: readonly [number, number],
  boxes: (token: number) => Iterable<LineBox>,
  slack: number,
): number | null {
  const first = findFirstBelow([from, to], y - slack, boxes);
  for (let token = first; token < to; token++) {
    const found = [...boxes(token)];
    if (found.some((box) => x >= box.left && x < box.right && y >= box.top - slack && y < box.bottom + slack)) return token;
    if (found.every((box) => box.top - slack > y)) break;
  }
  return null;
}

/** The first token in [from, to) that reaches below a height. */
export function findFirstBelow(
  [from, to]: readonly [number, number],
  y: number,
  boxes: (token: number) => Iterable<LineBox>,
): number {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (Math.max(...Array.from(boxes(middle), ({ bottom }) => bottom)) <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}
