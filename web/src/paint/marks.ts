// What points at the map: the crosshair under the pointer, the pinned query and key, the box of a zoom, the numbers in large cells.
import { entryOf, isBright, tableOf, type Scale } from "./colour";
import { pixelOf, type Viewport } from "../map/viewport";
import { matrixBox } from "./map";
import { fonts, hairline, type Box, type Surface, type Theme } from "./surface";
import { widthOf } from "./words";

/** From this zoom on a cell is large enough to be written on. */
export const VALUES_FROM = 34;

/** The band of one row or column in plot pixels, at least one device pixel. */
function band(token: number, first: number, zoom: number, scale: number): [from: number, to: number] {
  const from = pixelOf(token, first, zoom, scale);
  return [from, Math.max(from + 1 / scale, pixelOf(token + 1, first, zoom, scale))];
}

/** Row and column under the pointer: two thin pairs of lines, and the cell's outline where it is large enough to see. */
export function paintCrosshair(surface: Surface, plot: Box, theme: Theme, view: Viewport, query: number, key: number): void {
  const { context, scale } = surface;
  const matrix = matrixBox(plot, view, scale);
  const [top, bottom] = band(query, view.query, view.zoom, scale);
  const [left, right] = band(key, view.key, view.zoom, scale);
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
export function paintPins(surface: Surface, plot: Box, theme: Theme, view: Viewport, query: number | null, key: number | null): void {
  const { scale } = surface;
  const matrix = matrixBox(plot, view, scale);
  if (query !== null) {
    const y = plot.top + (query + 0.5 - view.query) * view.zoom;
    if (y >= matrix.top && y <= matrix.top + matrix.height) {
      const edges = view.zoom >= 8 ? band(query, view.query, view.zoom, scale).map((edge) => plot.top + edge) : [y];
      for (const edge of edges) stroke(surface, theme.query, [], matrix.left, edge, matrix.left + matrix.width, edge);
      const { context } = surface;
      context.fillStyle = theme.query;
      context.fillRect(plot.left - 8, y - 4, 8, 8);
    }
  }
  if (key !== null) {
    const x = plot.left + (key + 0.5 - view.key) * view.zoom;
    if (x >= matrix.left && x <= matrix.left + matrix.width) {
      const edges = view.zoom >= 8 ? band(key, view.key, view.zoom, scale).map((edge) => plot.left + edge) : [x];
      for (const edge of edges) stroke(surface, theme.key, [6, 4], edge, matrix.top, edge, matrix.top + matrix.height);
      const { context } = surface;
      context.fillStyle = theme.key;
      context.beginPath();
      context.arc(x, plot.top - 4, 4, 0, Math.PI * 2);
      context.fill();
    }
  }
}

/** A coloured line over a pale casing, so that it is seen on dark and on bright cells alike. */
function stroke(surface: Surface, colour: string, dashes: number[], x0: number, y0: number, x1: number, y1: number): void {
  const { context, scale } = surface;
  const even = (value: number): number => hairline(value, scale);
  for (const [ink, width, pattern] of [["rgb(255 255 255 / 85%)", 3.5, []], [colour, 1.75, dashes]] as const) {
    context.strokeStyle = ink;
    context.lineWidth = width;
    context.setLineDash([...pattern]);
    context.beginPath();
    context.moveTo(x0 === x1 ? even(x0) : x0, y0 === y1 ? even(y0) : y0);
    context.lineTo(x0 === x1 ? even(x1) : x1, y0 === y1 ? even(y1) : y1);
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
export function shortWeight(value: number): string {
  if (value === 0) return "0";
  if (value < 0.001) return "<.001";
  if (value >= 0.995) return value >= 0.9995 ? "1" : ".99";
  return (value < 0.1 ? value.toFixed(3) : value.toFixed(2)).slice(1);
}

export function paintValues(surface: Surface, plot: Box, view: Viewport, scale: Scale, values: Iterable<CellValue>): void {
  const { context } = surface;
  const table = tableOf(scale.colours);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `${view.zoom >= 44 ? 11 : 10}px ${fonts.text}`;
  for (const { query, key, value, exact } of values) {
    const entry = entryOf(value, scale);
    context.fillStyle = isBright(table, entry) ? "#000000" : "#ffffff";
    const x = plot.left + (key + 0.5 - view.key) * view.zoom;
    const y = plot.top + (query + 0.5 - view.query) * view.zoom;
    context.fillText((exact ? "" : "~") + shortWeight(value), x, y);
  }
}

/** The value beside the pointer. */
export function paintReadout(surface: Surface, plot: Box, theme: Theme, at: { x: number; y: number }, text: string): void {
  const { context } = surface;
  const font = `12px ${fonts.text}`;
  const width = widthOf(context, font, text) + 12;
  context.font = font;
  const left = at.x + 14 + width > plot.left + plot.width ? at.x - 14 - width : at.x + 14;
  const top = at.y + 34 > plot.top + plot.height ? at.y - 32 : at.y + 12;
  context.fillStyle = theme.paper;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.fillRect(left, top, width, 22);
  context.strokeRect(Math.round(left) + 0.5, Math.round(top) + 0.5, Math.round(width) - 1, 21);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, left + 6, top + 11.5);
}

export function paintRubber(surface: Surface, theme: Theme, box: Box): void {
  const { context } = surface;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.strokeRect(box.left, box.top, box.width, box.height);
  context.setLineDash([]);
}
