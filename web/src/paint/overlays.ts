// Marks on the map: the crosshair, the pinned query and key, the zoom box, the numbers in large cells.
import { getEntry, getTable, isBright, type ColourScale } from "./colour";
import { tokenToPixel, type Viewport } from "../geometry/viewport";
import { computeMatrixBox } from "./heatmap";
import type { Box } from "../geometry/box";
import { alignHairline, fonts, type Surface, type Theme } from "./surface";
import { formatLog2Ratio } from "../format_numbers";
import { measureWidth } from "./canvas_text";

/** From this zoom on a cell is large enough to be written on. */
export const VALUES_FROM_ZOOM = 34;

/** The band of one row or column in plot pixels, at least one device pixel. */
function getBand(token: number, first: number, zoom: number, scale: number): [from: number, to: number] {
  const from = tokenToPixel(token, first, zoom, scale);
  return [from, Math.max(from + 1 / scale, tokenToPixel(token + 1, first, zoom, scale))];
}

/** Row and column under the pointer: two thin pairs of lines, and the cell's outline where it is large enough to see. */
export function paintCrosshair(surface: Surface, plot: Box, theme: Theme, view: Viewport, query: number, key: number): void {
  const { context, scale } = surface;
  const matrix = computeMatrixBox(plot, view, scale);
  const [top, bottom] = getBand(query, view.query, view.zoom, scale);
  const [left, right] = getBand(key, view.key, view.zoom, scale);
  const thin = 1 / scale;
  for (const [colour, shift] of [["rgb(0 0 0 / 45%)", thin], ["rgb(255 255 255 / 80%)", 0]] as const) {
    context.fillStyle = colour;
    const fill = (x: number, y: number, width: number, height: number): void => context.fillRect(plot.left + x, plot.top + y, width, height);
    for (const y of view.zoom >= 3 ? [top - thin - shift, bottom + shift] : [(top + bottom) / 2 + shift]) fill(matrix.left - plot.left, y, matrix.width, thin);
    for (const x of view.zoom >= 3 ? [left - thin - shift, right + shift] : [(left + right) / 2 + shift]) fill(x, matrix.top - plot.top, thin, matrix.height);
  }
  if (view.zoom < 3) return;
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  context.strokeRect(plot.left + left - 0.75, plot.top + top - 0.75, right - left + 1.5, bottom - top + 1.5);
}

/** Query: solid line, square end. Key: dashed line, round end. Shape and colour both tell them apart. */
export function paintPins(surface: Surface, plot: Box, theme: Theme, view: Viewport, pins: PinnedCell): void {
  const { context, scale } = surface;
  const matrix = computeMatrixBox(plot, view, scale);
  const [right, bottom] = [matrix.left + matrix.width, matrix.top + matrix.height];
  const getRowPixel = (place: number): number => plot.top + (place - view.query) * view.zoom;
  const getColumnPixel = (place: number): number => plot.left + (place - view.key) * view.zoom;
  /** Along a row or a column, from here to there; false where it is out of sight. */
  const paintLine = (row: boolean, token: number, colour: string, dashes: number[], from: number, to: number): boolean => {
    const [first, start, low, high] = row ? [view.query, plot.top, matrix.top, bottom] : [view.key, plot.left, matrix.left, right];
    const middle = start + (token + 0.5 - first) * view.zoom;
    if (middle < low || middle > high) return false;
    for (const at of view.zoom >= 8 ? getBand(token, first, view.zoom, scale).map((edge) => start + edge) : [middle]) {
      if (row) strokeLine(surface, colour, dashes, Math.max(matrix.left, from), at, Math.min(right, to), at);
      else strokeLine(surface, colour, dashes, at, Math.max(matrix.top, from), at, Math.min(bottom, to));
    }
    return true;
  };
  // Folded at the diagonal, a query is a row below it and a column above it, and a key the other way round.
  const { query, key, queryEnd, keyEnd, isFolded } = pins;
  if (query !== null) {
    if (isFolded) paintLine(false, query, theme.query, [], -Infinity, getRowPixel(query));
    if (paintLine(true, query, theme.query, [], -Infinity, isFolded ? getColumnPixel(query + 1) : Infinity)) {
      context.fillStyle = theme.query;
      context.fillRect(plot.left - 8, getRowPixel(query + 0.5) - 4, 8, 8);
    }
  }
  if (queryEnd !== null) paintLine(true, queryEnd, theme.query, [], -Infinity, Infinity);
  if (keyEnd !== null) paintLine(false, keyEnd, theme.key, [6, 4], -Infinity, Infinity);
  if (key !== null) {
    const dashes = [6, 4];
    if (isFolded) paintLine(true, key, theme.key, dashes, getColumnPixel(key + 1), Infinity);
    if (paintLine(false, key, theme.key, dashes, isFolded ? getRowPixel(key) : -Infinity, Infinity)) {
      context.fillStyle = theme.key;
      context.beginPath();
      context.arc(getColumnPixel(key + 0.5), plot.top - 4, 4, 0, Math.PI * 2);
      context.fill();
    }
  }
}

export interface PinnedCell {
  query: number | null;
  key: number | null;
  /** The last token of a span; null for one token. */
  queryEnd: number | null;
  keyEnd: number | null;
  /** The picture is of two heads, one on each side of the diagonal. */
  isFolded: boolean;
}

/** A coloured line over a pale casing, so that it is seen on dark and on bright cells alike. */
function strokeLine(surface: Surface, colour: string, dashes: number[], x0: number, y0: number, x1: number, y1: number): void {
  const { context, scale } = surface;
  const align = (value: number): number => alignHairline(value, scale);
  for (const [ink, width, pattern] of [["rgb(255 255 255 / 85%)", 3.5, []], [colour, 1.75, dashes]] as const) {
    context.strokeStyle = ink;
    context.lineWidth = width;
    context.setLineDash([...pattern]);
    context.beginPath();
    context.moveTo(x0 === x1 ? align(x0) : x0, y0 === y1 ? align(y0) : y0);
    context.lineTo(x0 === x1 ? align(x1) : x1, y0 === y1 ? align(y1) : y1);
    context.stroke();
  }
  context.setLineDash([]);
}

export interface CellValue {
  query: number;
  key: number;
  value: number;
  exact: boolean;
}

/** Two digits are what a cell has room for. */
function formatShortWeight(value: number): string {
  if (value === 0) return "0";
  if (value < 0.001) return "<.001";
  if (value >= 0.995) return value >= 0.9995 ? "1" : ".99";
  return (value < 0.1 ? value.toFixed(3) : value.toFixed(2)).slice(1);
}

export function paintValues(surface: Surface, plot: Box, view: Viewport, scale: ColourScale, values: Iterable<CellValue>, countKeys: (query: number) => number): void {
  const { context } = surface;
  const table = getTable(scale.colours);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `${view.zoom >= 44 ? 11 : 10}px ${fonts.text}`;
  for (const { query, key, value, exact } of values) {
    const entry = getEntry(value, scale, countKeys(query));
    context.fillStyle = isBright(table, entry) ? "#000000" : "#ffffff";
    const x = plot.left + (key + 0.5 - view.key) * view.zoom;
    const y = plot.top + (query + 0.5 - view.query) * view.zoom;
    context.fillText((exact ? "" : "~") + (scale.colours === "ratio" ? formatLog2Ratio(value, 1) : formatShortWeight(value)), x, y);
  }
}

/** The value beside the pointer. */
export function paintReadout(surface: Surface, plot: Box, theme: Theme, at: { x: number; y: number }, text: string): void {
  const { context } = surface;
  const font = `12px ${fonts.text}`;
  const lines = text.split("\n");
  const width = Math.max(...lines.map((line) => measureWidth(context, font, line))) + 12;
  const height = 16 * lines.length + 6;
  context.font = font;
  const beside = at.x + 14 + width > plot.left + plot.width ? at.x - 14 - width : at.x + 14;
  // Never off the surface: on a narrow one it may reach over the axis.
  const left = Math.max(2, Math.min(beside, surface.width - width - 2));
  const top = at.y + height + 12 > plot.top + plot.height ? at.y - height - 10 : at.y + 12;
  context.fillStyle = theme.paper;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.fillRect(left, top, width, height);
  context.strokeRect(Math.round(left) + 0.5, Math.round(top) + 0.5, Math.round(width) - 1, height - 1);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  lines.forEach((line, index) => context.fillText(line, left + 6, top + 11.5 + 16 * index));
}

export function paintSelectionBox(surface: Surface, theme: Theme, box: Box): void {
  const { context } = surface;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.strokeRect(box.left, box.top, box.width, box.height);
  context.setLineDash([]);
}
