// Names and numbers along the two axes, and the corner that says what they mean.
import { EVERY_TOKEN_FROM_ZOOM, type AxisLabel } from "../geometry/axis_labels";
import type { Box } from "../geometry/box";
import { fonts, snapToPixel, type Surface, type Theme } from "./surface";
import type { Side } from "../server/protocol";
import { formatCount } from "../format_numbers";
import { fitText, measureWidth, wrapText } from "./canvas_text";
import { paintHatch } from "./hatch";
import type { Viewport } from "../geometry/viewport";

/** Tokens of one text that the other does not have, as half-open ranges. */
export type UnmatchedTokens = Readonly<Record<Side, readonly (readonly [from: number, to: number])[]>>;

const SLANT = Math.PI / 3;
/** Low enough to leave the names of the rows beside it whole. */
const TAG_HEIGHT = 16;

export interface AxisDrawing {
  labels: readonly AxisLabel[];
  numbers: readonly number[];
  first: number;
  zoom: number;
  /** Tags over the axis: names and numbers below them are left out. */
  tags: readonly Box[];
}

/** Smaller where every row has a name and little room. */
const getFontSize = (zoom: number): number => (zoom < EVERY_TOKEN_FROM_ZOOM || zoom >= 13 ? 11 : zoom < 11 ? 9 : 10);

function getFont(kind: AxisLabel["kind"], zoom: number): string {
  return kind === "section" ? `500 ${getFontSize(zoom)}px ${fonts.text}` : `${getFontSize(zoom)}px ${fonts.mono}`;
}

const numberFont = `10px ${fonts.text}`;

/** Calls `draw` kind by kind: setting a font is slow. */
function forEachLabel(surface: Surface, theme: Theme, axis: AxisDrawing, draw: (label: AxisLabel, font: string) => void): void {
  for (const kind of ["section", "token"] as const) {
    const font = getFont(kind, axis.zoom);
    surface.context.font = font;
    surface.context.fillStyle = kind === "section" || axis.zoom >= EVERY_TOKEN_FROM_ZOOM ? theme.ink : theme.muted;
    for (const label of axis.labels) if (label.kind === kind) draw(label, font);
  }
}

/** How far the letters of a line reach from its middle. */
const HALF_LINE = 5;

export function paintLeftAxis(surface: Surface, names: Box, numbers: Box, theme: Theme, axis: AxisDrawing): void {
  const { context } = surface;
  const isCovered = (y: number): boolean => axis.tags.some(({ top, height }) => y > top - HALF_LINE && y < top + height + HALF_LINE);
  const bottom = names.top + names.height;
  context.textAlign = "right";
  context.textBaseline = "middle";
  forEachLabel(surface, theme, axis, (label, font) => {
    const y = names.top + (label.position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 2 || y > bottom + 2 || isCovered(y)) return;
    context.fillText(fitText(context, font, label.text, names.width - 10), names.left + names.width - 2, y);
  });
  context.font = numberFont;
  const right = numbers.left + numbers.width - 6;
  for (const position of axis.numbers) {
    const y = names.top + (position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 1 || y > bottom + 1) continue;
    context.fillStyle = theme.muted;
    const middle = Math.max(y, names.top + 4);
    if (!isCovered(middle)) context.fillText(formatCount(position), right, middle);
    context.fillStyle = theme.line;
    context.fillRect(right + 2, snapToPixel(y, surface.scale), 3, 1 / surface.scale);
  }
}

export function paintTopAxis(surface: Surface, names: Box, numbers: Box, theme: Theme, axis: AxisDrawing): void {
  const { context } = surface;
  const end = names.left + names.width;
  const foot = names.top + names.height;
  // Slanted names are hard to read: where each fits over its own column, none is slanted.
  const upright = axis.labels.every(({ text }) => text.length * 7 < axis.zoom);
  const longest = names.height / Math.sin(SLANT) - 10;
  context.textAlign = upright ? "center" : "left";
  context.textBaseline = upright ? "alphabetic" : "middle";
  context.save();
  forEachLabel(surface, theme, axis, (label, font) => {
    const x = names.left + (label.position + 0.5 - axis.first) * axis.zoom;
    if (x < names.left - 2 || x > end + 2) return;
    if (upright) context.fillText(fitText(context, font, label.text, axis.zoom - 2), x, foot - 4);
    else {
      // The last ones end where the surface does.
      const text = fitText(context, font, label.text, Math.min(longest, (surface.width - x - 12) / Math.cos(SLANT)));
      context.translate(x + 1, foot - 2);
      context.rotate(-SLANT);
      context.fillText(text, 0, 0);
      context.rotate(SLANT);
      context.translate(-x - 1, 2 - foot);
    }
  });
  // Rotating there and back leaves rounding errors.
  context.restore();
  context.font = numberFont;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const base = numbers.top + numbers.height - 6;
  for (const position of axis.numbers) {
    const x = names.left + (position + 0.5 - axis.first) * axis.zoom;
    if (x < names.left - 1 || x > end + 1) continue;
    const text = formatCount(position);
    const half = measureWidth(context, numberFont, text) / 2;
    const middle = Math.min(Math.max(x, names.left + half), surface.width - half - 1);
    context.fillStyle = theme.muted;
    if (!axis.tags.some(({ left, width }) => middle + half > left - 2 && middle - half < left + width + 2)) context.fillText(text, middle, base);
    context.fillStyle = theme.line;
    context.fillRect(snapToPixel(x, surface.scale), base + 2, 1 / surface.scale, 3);
  }
}

/** The full name of a row or column under the pointer or pinned, over its axis. */
export interface Tag {
  readonly box: Box;
  readonly text: string;
  readonly colour: string;
}

const tagFont = `11px ${fonts.mono}`;

/** A tag inside its axis, which ends left of the plot or above it: it never covers what stands in the corner. */
export function placeTag({ context }: Surface, text: string, at: number, axis: Box, side: "left" | "top", colour: string): Tag {
  const shown = fitText(context, tagFont, text, axis.width - 12);
  const width = Math.min(axis.width, measureWidth(context, tagFont, shown) + 10);
  const clamp = (value: number, start: number, length: number): number => Math.max(start, Math.min(value, start + length));
  const left = side === "left" ? axis.left + axis.width - width : clamp(at - width / 2, axis.left, axis.width - width);
  const top = side === "left" ? clamp(at - TAG_HEIGHT / 2, axis.top, axis.height - TAG_HEIGHT) : axis.top + axis.height - TAG_HEIGHT;
  return { box: { left, top, width, height: TAG_HEIGHT }, text: shown, colour };
}

export function paintTag({ context }: Surface, theme: Theme, { box, text, colour }: Tag): void {
  context.font = tagFont;
  context.fillStyle = colour;
  context.fillRect(box.left, box.top, box.width, box.height);
  context.fillStyle = theme.paper;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, box.left + 5, box.top + TAG_HEIGHT / 2 + 0.5);
}

/** What rows and columns are. The sentence is never cut: it says how to read the map. */
export function paintCorner(surface: Surface, corner: Box, theme: Theme, reads: readonly string[], name?: string): void {
  const { context } = surface;
  const font = `${corner.width < 150 ? 10 : 11}px ${fonts.text}`;
  const right = corner.left + corner.width - 6;
  const lines = reads.flatMap((sentence) => wrapText(context, font, sentence, right - 4));
  const bold = `600 12px ${fonts.text}`;
  const [first, ...rest] = name ? wrapText(context, bold, name, right - 4) : [];
  const named = [first, rest.join(" ")].flatMap((line) => line || []);
  if (corner.height >= 14 * (lines.length + named.length + 2) + 8 * named.length) lines.splice(0, lines.length, "keys \u2192", ...lines, "queries \u2193");
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  context.fillStyle = theme.ink;
  named.forEach((line, index) => {
    const shown = fitText(context, bold, line, right - 4);
    context.font = bold;
    context.fillText(shown, right, corner.top + 13 + 14 * index);
  });
  context.font = font;
  context.fillStyle = theme.muted;
  lines.reverse().forEach((line, index) => context.fillText(line, right, corner.top + corner.height - 6 - 14 * index));
}

/** The names of two heads that share a picture, each at the end of the strip beside its own half. */
export function paintNames(surface: Surface, matrix: Box, theme: Theme, names: readonly [string, string]): void {
  const { context } = surface;
  const font = `600 11px ${fonts.text}`;
  const writeName = (letter: string, name: string, x: number, y: number, length: number): void => {
    const text = fitText(context, font, `${letter} ${name}`, Math.max(12, length - 8));
    const width = measureWidth(context, font, text) + 8;
    const left = letter === "A" ? x : x - width;
    context.fillStyle = theme.ink;
    context.fillRect(left, y, width, TAG_HEIGHT);
    context.fillStyle = theme.paper;
    context.font = font;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, left + 4, y + TAG_HEIGHT / 2 + 0.5);
  };
  writeName("B", names[1], matrix.left + matrix.width, matrix.top - TAG_HEIGHT - 4, matrix.width);
  context.save();
  context.translate(matrix.left - TAG_HEIGHT - 4, matrix.top + matrix.height);
  context.rotate(-Math.PI / 2);
  writeName("A", names[0], 0, 0, matrix.height);
  context.restore();
}

/** Hatches the numbers of tokens that the other text does not have. */
export function paintUnmatched(surface: Surface, boxes: { leftNumbers: Box; topNumbers: Box }, theme: Theme, view: Viewport, unmatched: UnmatchedTokens): void {
  const { leftNumbers, topNumbers } = boxes;
  const forEachRange = (ranges: UnmatchedTokens["query"], first: number, pixels: number, paint: (from: number, length: number) => void): void => {
    for (const [start, end] of ranges) {
      const [from, to] = [Math.max(0, (start - first) * view.zoom), Math.min(pixels, Math.max((end - first) * view.zoom, (start - first) * view.zoom + 1))];
      if (to > from) paint(from, to - from);
    }
  };
  forEachRange(unmatched.query, view.query, leftNumbers.height, (from, height) => paintHatch(surface, { ...leftNumbers, top: leftNumbers.top + from, height }, theme));
  forEachRange(unmatched.key, view.key, topNumbers.width, (from, width) => paintHatch(surface, { ...topNumbers, left: topNumbers.left + from, width }, theme));
}
