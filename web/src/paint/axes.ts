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
  /** Positions that have a tag, which says their name. */
  tagged: readonly (number | null | undefined)[];
}

const getFontSize = (zoom: number): number => (zoom >= 11 && zoom < 13 ? 10 : 11);

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
    for (const label of axis.labels) if (label.kind === kind && !axis.tagged.includes(label.position)) draw(label, font);
  }
}

export function paintLeftAxis(surface: Surface, names: Box, numbers: Box, theme: Theme, axis: AxisDrawing): void {
  const { context } = surface;
  const bottom = names.top + names.height;
  context.textAlign = "right";
  context.textBaseline = "middle";
  forEachLabel(surface, theme, axis, (label, font) => {
    const y = names.top + (label.position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 2 || y > bottom + 2) return;
    context.fillText(fitText(context, font, label.text, names.width - 10), names.left + names.width - 2, y);
  });
  context.font = numberFont;
  const right = numbers.left + numbers.width - 6;
  for (const position of axis.numbers) {
    const y = names.top + (position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 1 || y > bottom + 1) continue;
    context.fillStyle = theme.muted;
    context.fillText(formatCount(position), right, Math.max(y, names.top + 4));
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
    context.fillStyle = theme.muted;
    context.fillText(text, Math.max(x, names.left + measureWidth(context, numberFont, text) / 2), base);
    context.fillStyle = theme.line;
    context.fillRect(snapToPixel(x, surface.scale), base + 2, 1 / surface.scale, 3);
  }
}

/** A filled tag beside an axis: the full name of the row or column under the pointer or pinned. */
export function paintTag(surface: Surface, theme: Theme, text: string, at: { x: number; y: number }, side: "left" | "top", colour: string): void {
  const { context } = surface;
  const font = `11px ${fonts.mono}`;
  const shown = fitText(context, font, text, surface.width - 24);
  const width = Math.min(surface.width - 12, measureWidth(context, font, shown) + 10);
  context.font = font;
  const left = side === "left" ? Math.max(2, at.x - width) : Math.min(surface.width - width - 2, Math.max(2, at.x - width / 2));
  const top = Math.min(surface.height - TAG_HEIGHT, Math.max(0, at.y - (side === "left" ? TAG_HEIGHT / 2 : TAG_HEIGHT)));
  context.fillStyle = colour;
  context.fillRect(left, top, width, TAG_HEIGHT);
  context.fillStyle = theme.paper;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(shown, left + 5, top + TAG_HEIGHT / 2 + 0.5);
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
