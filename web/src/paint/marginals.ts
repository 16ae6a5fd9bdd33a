// The strips beside the map: what each key receives (above) and how spread each query's attention is (left).
//
// Heights have fixed meanings, so that a strip never rescales by itself: entropy from 0 to ln(keys) nats; received, the sum over all queries,
// on a logarithmic scale with a line at the average. Each bin shows its mean, and behind it, paler, its largest.
// A block of bins is drawn once into a small picture, one pixel per bin, and stretched from then on.
import type { FloatTile } from "../server/tile_codec";
import { TILE_SIZE } from "../geometry/zoom_plan";
import { tokenToPixel, type Viewport } from "../geometry/viewport";
import type { Box } from "../geometry/box";
import { alignHairline, clipTo, type Surface, type Theme } from "./surface";

export interface StripBlock {
  block: number;
  stride: number;
  values: FloatTile;
}

const RECEIVED_LOW = -8;

/** 0..1: how far a strip reaches for a value. */
function scaleEntropy(nats: number, keys: number): number {
  return keys > 1 ? Math.min(1, Math.max(0, nats / Math.log(keys))) : 0;
}

function scaleReceived(mass: number, queries: number): number {
  const high = Math.max(1, Math.log2(Math.max(2, queries)));
  return mass > 0 ? Math.min(1, Math.max(0, (Math.log2(mass) - RECEIVED_LOW) / (high - RECEIVED_LOW))) : 0;
}

const stripImages = new WeakMap<FloatTile, { name: string; picture: OffscreenCanvas }>();

interface StripStyle {
  share(value: number): number;
  upright: boolean;
  /** Device pixels. */
  thickness: number;
  theme: Theme;
}

function getStripImage(values: FloatTile, style: StripStyle): OffscreenCanvas {
  const { thickness, theme, upright } = style;
  const name = `${thickness} ${theme.strip} ${upright}`;
  const before = stripImages.get(values);
  if (before?.name === name) return before.picture;
  const count = Math.max(1, values.columns);
  const picture = upright ? new OffscreenCanvas(count, thickness) : new OffscreenCanvas(thickness, count);
  const context = picture.getContext("2d");
  for (let row = Math.min(2, values.rows) - 1; context && row >= 0; row--) {
    context.fillStyle = row === 0 ? theme.strip : theme.line;
    for (let bin = 0; bin < values.columns; bin++) {
      const value = values.values[row * values.columns + bin] ?? NaN;
      const length = value > 0 ? Math.max(1, Math.round(style.share(value) * thickness)) : 0;
      if (upright) context.fillRect(bin, thickness - length, 1, length);
      else context.fillRect(thickness - length, bin, length, 1);
    }
  }
  stripImages.set(values, { name, picture });
  return picture;
}

export function paintTopStrip(surface: Surface, box: Box, theme: Theme, view: Viewport, blocks: readonly StripBlock[]): void {
  const { context, scale } = surface;
  const style: StripStyle = { share: (value) => scaleReceived(value, view.queries), upright: true, thickness: Math.round(box.height * scale), theme };
  const right = Math.min(box.left + box.width, box.left + tokenToPixel(view.keys, view.key, view.zoom, scale));
  clipTo(surface, { ...box, width: right - box.left }, () => {
    context.imageSmoothingEnabled = false;
    for (const { block, stride, values } of blocks) {
      const from = tokenToPixel(block * TILE_SIZE * stride, view.key, view.zoom, scale);
      const to = tokenToPixel((block * TILE_SIZE + values.columns) * stride, view.key, view.zoom, scale);
      context.drawImage(getStripImage(values, style), box.left + from, box.top, to - from, box.height);
    }
    const average = alignHairline(box.top + box.height - scaleReceived(view.queries / view.keys, view.queries) * box.height, scale);
    context.strokeStyle = theme.paper;
    context.lineWidth = 1 / scale;
    context.beginPath();
    context.moveTo(box.left, average);
    context.lineTo(right, average);
    context.stroke();
  });
}

export function paintLeftStrip(surface: Surface, box: Box, theme: Theme, view: Viewport, blocks: readonly StripBlock[]): void {
  const { context, scale } = surface;
  const style: StripStyle = { share: (value) => scaleEntropy(value, view.keys), upright: false, thickness: Math.round(box.width * scale), theme };
  const bottom = Math.min(box.top + box.height, box.top + tokenToPixel(view.queries, view.query, view.zoom, scale));
  clipTo(surface, { ...box, height: bottom - box.top }, () => {
    context.imageSmoothingEnabled = false;
    for (const { block, stride, values } of blocks) {
      const from = tokenToPixel(block * TILE_SIZE * stride, view.query, view.zoom, scale);
      const to = tokenToPixel((block * TILE_SIZE + values.columns) * stride, view.query, view.zoom, scale);
      context.drawImage(getStripImage(values, style), box.left, box.top + from, box.width, to - from);
    }
  });
}
