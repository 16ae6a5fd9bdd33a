// Names and numbers along the two axes, and the corner that says what they mean.
import { EVERY_TOKEN_FROM, type Label } from "../geometry/axis_labels";
import { fonts, snap, type Box, type Surface, type Theme } from "./surface";
import { counted } from "../format_numbers";
import { fitted, widthOf, wrapped } from "./canvas_text";
import { paintHatch } from "./hatch";
import type { Alone } from "../map/map_scene";
import type { Viewport } from "../geometry/viewport";

const SLANT = Math.PI / 3;
/** Low enough to leave the names of the rows beside it whole. */
const TAG = 16;

export interface AxisPicture {
  labels: readonly Label[];
  numbers: readonly number[];
  first: number;
  zoom: number;
  /** Positions that have a tag, which says their name. */
  tagged: readonly (number | null | undefined)[];
}

const sizeAt = (zoom: number): number => (zoom >= 11 && zoom < 13 ? 10 : 11);

function fontOf(kind: Label["kind"], zoom: number): string {
  return kind === "section" ? `500 ${sizeAt(zoom)}px ${fonts.text}` : `${sizeAt(zoom)}px ${fonts.mono}`;
}

const numberFont = `10px ${fonts.text}`;

/** Draws the labels kind by kind: setting a font is dear. */
function eachLabel(surface: Surface, theme: Theme, axis: AxisPicture, draw: (label: Label, font: string) => void): void {
  for (const kind of ["section", "token"] as const) {
    const font = fontOf(kind, axis.zoom);
    surface.context.font = font;
    surface.context.fillStyle = kind === "section" || axis.zoom >= EVERY_TOKEN_FROM ? theme.ink : theme.muted;
    for (const label of axis.labels) if (label.kind === kind && !axis.tagged.includes(label.position)) draw(label, font);
  }
}

export function paintLeftAxis(surface: Surface, names: Box, numbers: Box, theme: Theme, axis: AxisPicture): void {
  const { context } = surface;
  const bottom = names.top + names.height;
  context.textAlign = "right";
  context.textBaseline = "middle";
  eachLabel(surface, theme, axis, (label, font) => {
    const y = names.top + (label.position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 2 || y > bottom + 2) return;
    context.fillText(fitted(context, font, label.text, names.width - 10), names.left + names.width - 2, y);
  });
  context.font = numberFont;
  const right = numbers.left + numbers.width - 6;
  for (const position of axis.numbers) {
    const y = names.top + (position + 0.5 - axis.first) * axis.zoom;
    if (y < names.top - 1 || y > bottom + 1) continue;
    context.fillStyle = theme.muted;
    context.fillText(counted(position), right, Math.max(y, names.top + 4));
    context.fillStyle = theme.line;
    context.fillRect(right + 2, snap(y, surface.scale), 3, 1 / surface.scale);
  }
}

export function paintTopAxis(surface: Surface, names: Box, numbers: Box, theme: Theme, axis: AxisPicture): void {
  const { context } = surface;
  const end = names.left + names.width;
  const foot = names.top + names.height;
  // Slanted names are hard to read: where each fits over its own column, none is slanted.
  const upright = axis.labels.every(({ text }) => text.length * 7 < axis.zoom);
  const longest = names.height / Math.sin(SLANT) - 10;
  context.textAlign = upright ? "center" : "left";
  context.textBaseline = upright ? "alphabetic" : "middle";
  context.save();
  eachLabel(surface, theme, axis, (label, font) => {
    const x = names.left + (label.position + 0.5 - axis.first) * axis.zoom;
    if (x < names.left - 2 || x > end + 2) return;
    if (upright) context.fillText(fitted(context, font, label.text, axis.zoom - 2), x, foot - 4);
    else {
      // The last ones end where the surface does.
      const text = fitted(context, font, label.text, Math.min(longest, (surface.width - x - 12) / Math.cos(SLANT)));
      context.translate(x + 1, foot - 2);
      context.rotate(-SLANT);
      context.fillText(text, 0, 0);
      context.rotate(SLANT);
      context.translate(-x - 1, 2 - foot);
    }
  });
  // The turns there and back leave rounding behind.
  context.restore();
  context.font = numberFont;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const base = numbers.top + numbers.height - 6;
  for (const position of axis.numbers) {
    const x = names.left + (position + 0.5 - axis.first) * axis.zoom;
    if (x < names.left - 1 || x > end + 1) continue;
    const text = counted(position);
    context.fillStyle = theme.muted;
    context.fillText(text, Math.max(x, names.left + widthOf(context, numberFont, text) / 2), base);
    context.fillStyle = theme.line;
    context.fillRect(snap(x, surface.scale), base + 2, 1 / surface.scale, 3);
  }
}

/** A filled tag beside an axis: the full name of the row or column under the pointer or pinned. */
export function paintTag(surface: Surface, theme: Theme, text: string, at: { x: number; y: number }, side: "left" | "top", colour: string): void {
  const { context } = surface;
  const font = `11px ${fonts.mono}`;
  const shown = fitted(context, font, text, surface.width - 24);
  const width = Math.min(surface.width - 12, widthOf(context, font, shown) + 10);
  context.font = font;
  const left = side === "left" ? Math.max(2, at.x - width) : Math.min(surface.width - width - 2, Math.max(2, at.x - width / 2));
  const top = Math.min(surface.height - TAG, Math.max(0, at.y - (side === "left" ? TAG / 2 : TAG)));
  context.fillStyle = colour;
  context.fillRect(left, top, width, TAG);
  context.fillStyle = theme.paper;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(shown, left + 5, top + TAG / 2 + 0.5);
}

/** What rows and columns are. The sentence is never cut: it says how to read the map. */
export function paintCorner(surface: Surface, corner: Box, theme: Theme, reads: readonly string[], name?: string): void {
  const { context } = surface;
  const font = `${corner.width < 150 ? 10 : 11}px ${fonts.text}`;
  const right = corner.left + corner.width - 6;
  const lines = reads.flatMap((sentence) => wrapped(context, font, sentence, right - 4));
  const bold = `600 12px ${fonts.text}`;
  const [first, ...rest] = name ? wrapped(context, bold, name, right - 4) : [];
  const named = [first, rest.join(" ")].flatMap((line) => line || []);
  if (corner.height >= 14 * (lines.length + named.length + 2) + 8 * named.length) lines.splice(0, lines.length, "keys \u2192", ...lines, "queries \u2193");
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  context.fillStyle = theme.ink;
  named.forEach((line, index) => {
    const shown = fitted(context, bold, line, right - 4);
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
  const written = (letter: string, name: string, x: number, y: number, length: number): void => {
    const text = fitted(context, font, `${letter} ${name}`, Math.max(12, length - 8));
    const width = widthOf(context, font, text) + 8;
    const left = letter === "A" ? x : x - width;
    context.fillStyle = theme.ink;
    context.fillRect(left, y, width, TAG);
    context.fillStyle = theme.paper;
    context.font = font;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, left + 4, y + TAG / 2 + 0.5);
  };
  written("B", names[1], matrix.left + matrix.width, matrix.top - TAG - 4, matrix.width);
  context.save();
  context.translate(matrix.left - TAG - 4, matrix.top + matrix.height);
  context.rotate(-Math.PI / 2);
  written("A", names[0], 0, 0, matrix.height);
  context.restore();
}

/** Hatches the numbers of tokens that the other text does not have. */
export function paintAlone(surface: Surface, boxes: { leftNumbers: Box; topNumbers: Box }, theme: Theme, view: Viewport, alone: Alone): void {
  const { leftNumbers, topNumbers } = boxes;
  const spread = (ranges: Alone["query"], first: number, pixels: number, paint: (from: number, length: number) => void): void => {
    for (const [start, end] of ranges) {
      const [from, to] = [Math.max(0, (start - first) * view.zoom), Math.min(pixels, Math.max((end - first) * view.zoom, (start - first) * view.zoom + 1))];
      if (to > from) paint(from, to - from);
    }
  };
  spread(alone.query, view.query, leftNumbers.height, (from, height) => paintHatch(surface, { ...leftNumbers, top: leftNumbers.top + from, height }, theme));
  spread(alone.key, view.key, topNumbers.width, (from, width) => paintHatch(surface, { ...topNumbers, left: topNumbers.left + from, width }, theme));
}
