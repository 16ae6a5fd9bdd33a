// Columns of keys that are evicted from the KV cache, hatched like the mask: queries after the context cannot attend to them.
import { tokenToPixel, type Viewport } from "../geometry/viewport";
import type { Box } from "../geometry/box";
import type { EvictedKeys } from "../server/evicted_keys";
import { paintHatch } from "./hatch";
import { computeMatrixBox } from "./heatmap";
import type { Surface, Theme } from "./surface";

/** Steps of opacity: a bin is as opaque as its share of evicted keys. */
const STEPS = 8;

export function paintEvictedColumns(surface: Surface, plot: Box, theme: Theme, view: Viewport, evicted: EvictedKeys, stride: number): void {
  const { context, scale } = surface;
  const matrix = computeMatrixBox(plot, view, scale);
  const top = Math.max(matrix.top, plot.top + tokenToPixel(evicted.context, view.query, view.zoom, scale));
  const height = matrix.top + matrix.height - top;
  if (height <= 0) return;
  const findLeft = (key: number): number => plot.left + Math.min(plot.width, Math.max(0, tokenToPixel(key, view.key, view.zoom, scale)));
  const end = Math.min(evicted.context, Math.ceil(view.key + view.width / view.zoom));
  const first = Math.max(0, Math.floor(view.key / stride) * stride);
  let [start, level] = [first, 0];
  const paintRun = (stop: number): void => {
    const left = findLeft(start);
    context.globalAlpha = level / STEPS;
    if (level > 0) paintHatch(surface, { left, top, width: findLeft(stop) - left, height }, theme);
  };
  for (let key = first; key < end; key += stride) {
    const stop = Math.min(key + stride, evicted.context);
    const share = Math.round((STEPS * evicted.count(key, stop)) / (stop - key));
    if (share === level) continue;
    paintRun(key);
    [start, level] = [key, share];
  }
  paintRun(end);
  context.globalAlpha = 1;
}
