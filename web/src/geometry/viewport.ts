// The visible part of a matrix: the token at the top left corner of the plot, and the pixels per token.
//
// Positions are float64 in token units: the whole part of ten million tokens leaves 29 bits for the fraction, so nothing flickers.
// A matrix smaller than the plot stays at the top left, next to its labels.
import type { TokenRanges } from "./zoom_plan";

export const LARGEST_ZOOM = 64;

export interface Size {
  width: number;
  height: number;
}

/** A matrix in a plot. */
export interface Plot {
  readonly queries: number;
  readonly keys: number;
  /** Of the plot, in CSS pixels. */
  readonly width: number;
  readonly height: number;
}

export interface Viewport extends Plot {
  /** Token at the top left corner, with fraction. */
  readonly query: number;
  readonly key: number;
  /** CSS pixels per token. */
  readonly zoom: number;
}

export function computeFitZoom(queries: number, keys: number, size: Size): number {
  return Math.min(LARGEST_ZOOM, size.width / Math.max(1, keys), size.height / Math.max(1, queries));
}

function clampView(view: Viewport): Viewport {
  const zoom = Math.min(LARGEST_ZOOM, Math.max(computeFitZoom(view.queries, view.keys, view), view.zoom));
  const clampStart = (at: number, length: number, pixels: number): number => Math.max(0, Math.min(at, length - pixels / zoom));
  return { ...view, zoom, query: clampStart(view.query, view.queries, view.height), key: clampStart(view.key, view.keys, view.width) };
}

/** The whole matrix. */
export function fitView({ queries, keys, width, height }: Plot): Viewport {
  return clampView({ queries, keys, width, height, query: 0, key: 0, zoom: 0 });
}

/** A place as an address names it; null is what it leaves out. */
export interface ViewPlace {
  readonly centre: { readonly query: number; readonly key: number } | null;
  readonly zoom: number | null;
}

export interface PinnedPair {
  readonly query: number | null;
  readonly key: number | null;
}

/**
 * The view of an address: the whole matrix, or its centre and zoom. Pins are in view, in a plot of any size.
 *
 * Without a centre it is at the pins, and without those in the middle of the matrix.
 */
export function placeView(plot: Plot, { centre, zoom }: ViewPlace, pins: PinnedPair | null): Viewport {
  const whole = fitView(plot);
  if (centre === null && zoom === null) return whole;
  const { query, key } = centre ?? { query: pins?.query ?? plot.queries / 2, key: pins?.key ?? plot.keys / 2 };
  const placed = centreView(whole, query, key, zoom ?? whole.zoom);
  // A place that shows the pins is kept as it is, so that an address names one picture.
  return pins && !showsCell(placed, pins.query, pins.key) ? revealCell(placed, pins.query, pins.key) : placed;
}

export function panView(view: Viewport, dx: number, dy: number): Viewport {
  return clampView({ ...view, query: view.query + dy / view.zoom, key: view.key + dx / view.zoom });
}

/** The token under (x, y) stays under it, as far as the borders of the matrix allow. */
export function zoomViewAt(view: Viewport, zoom: number, x: number, y: number): Viewport {
  const next = Math.min(LARGEST_ZOOM, Math.max(computeFitZoom(view.queries, view.keys, view), zoom));
  return clampView({
    ...view,
    zoom: next,
    query: view.query + y / view.zoom - y / next,
    key: view.key + x / view.zoom - x / next,
  });
}

export function centreView(view: Viewport, query: number, key: number, zoom: number): Viewport {
  const next = clampView({ ...view, zoom });
  return clampView({ ...next, query: query - next.height / next.zoom / 2, key: key - next.width / next.zoom / 2 });
}

export function getCentre(view: Viewport): { query: number; key: number } {
  return { query: view.query + view.height / view.zoom / 2, key: view.key + view.width / view.zoom / 2 };
}

/** Whether the pair is in view; null is in every view. */
export function showsCell(view: Viewport, query: number | null, key: number | null): boolean {
  const isInside = (at: number | null, first: number, pixels: number): boolean => at === null || (at >= first && at + 1 <= first + pixels / view.zoom);
  return isInside(query, view.query, view.height) && isInside(key, view.key, view.width);
}

/** Move just enough to show the pair, a little away from the border; null is not moved to. */
export function revealCell(view: Viewport, query: number | null, key: number | null): Viewport {
  const revealPosition = (at: number | null, first: number, pixels: number): number => {
    if (at === null) return first;
    const shown = pixels / view.zoom;
    const margin = Math.min(shown / 4, 24 / view.zoom);
    if (at < first + margin) return at - margin;
    if (at + 1 > first + shown - margin) return at + 1 - shown + margin;
    return first;
  };
  return clampView({ ...view, query: revealPosition(query, view.query, view.height), key: revealPosition(key, view.key, view.width) });
}

/** Zoom to a box of plot pixels. */
export function zoomToBox(view: Viewport, left: number, top: number, width: number, height: number): Viewport {
  const zoom = view.zoom * Math.min(view.width / Math.max(1, width), view.height / Math.max(1, height));
  return centreView(view, view.query + (top + height / 2) / view.zoom, view.key + (left + width / 2) / view.zoom, zoom);
}

export function getVisibleRange(view: Viewport): TokenRanges {
  const toRange = (first: number, pixels: number, length: number): [number, number] => [
    Math.max(0, Math.floor(first)),
    Math.min(length, Math.ceil(first + pixels / view.zoom - 1e-9)),
  ];
  return { query: toRange(view.query, view.height, view.queries), key: toRange(view.key, view.width, view.keys) };
}

/** Plot pixel of a token border. The same token always gives the same pixel, so the end of one tile is the start of the next. */
export function tokenToPixel(token: number, first: number, zoom: number, scale: number): number {
  return Math.round((token - first) * zoom * scale) / scale;
}
