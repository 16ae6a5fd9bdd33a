// Text on canvas: measured once, truncated to a width, isolated from the direction of its neighbours.
//
// The font is a parameter: reading it from the context is slower than drawing the text.
import { isolateDirection } from "./token_text";
import type { Context } from "./surface";

const MAX_ENTRIES = 8000;
const widths = new Map<string, number>();
const fittedTexts = new Map<string, string>();

export function measureWidth(context: Context, font: string, text: string): number {
  const name = `${font}\n${text}`;
  let width = widths.get(name);
  if (width === undefined) {
    if (widths.size >= MAX_ENTRIES) widths.clear();
    context.font = font;
    width = context.measureText(text).width;
    widths.set(name, width);
  }
  return width;
}

/** The text, cut with an ellipsis to a width. The result is ready for fillText. */
export function fitText(context: Context, font: string, text: string, width: number): string {
  const name = `${font}\n${Math.floor(width)}\n${text}`;
  let result = fittedTexts.get(name);
  if (result === undefined) {
    if (fittedTexts.size >= MAX_ENTRIES) fittedTexts.clear();
    context.font = font;
    result = isolateDirection(truncate(context, text, Math.floor(width)));
    fittedTexts.set(name, result);
  }
  return result;
}

/** The text in lines of whole words, none wider than this if its words are not. */
export function wrapText(context: Context, font: string, text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1) ?? ""} ${word}`;
    if (lines.length > 0 && measureWidth(context, font, longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

function truncate(context: Context, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  let [low, high] = [0, characters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${characters.slice(0, middle).join("")}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${characters.slice(0, low).join("").trimEnd()}…`;
}
