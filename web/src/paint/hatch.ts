// The hatch that means "masked": light diagonal lines on a light ground, anchored to the screen so that it does not swim while panning.
// Zero is the darkest colour of the table; what the model computed is hatched only on request: the first token, and keys evicted from the KV cache.
import type { Box } from "../geometry/box";
import type { Context, Surface, Theme } from "./surface";

export const HATCH_STEP = 8;

/** The lines of a cell of the hatch; those in its corners make the line whole where cells meet. */
export function getHatchLines(side: number): [x0: number, y0: number, x1: number, y1: number][] {
  return [-side, 0, side].map((shift) => [shift - 1, side + 1, shift + side + 1, -1]);
}

const patterns = new WeakMap<Context, { name: string; pattern: CanvasPattern }>();

function getPattern(surface: Surface, theme: Theme): CanvasPattern | string {
  const { context, scale } = surface;
  const name = `${theme.hatch} ${theme.hatchGround} ${scale}`;
  const before = patterns.get(context);
  if (before?.name === name) return before.pattern;
  const side = Math.max(4, Math.round(HATCH_STEP * scale));
  const cell = new OffscreenCanvas(side, side);
  const pen = cell.getContext("2d");
  if (!pen) return theme.hatchGround;
  pen.fillStyle = theme.hatchGround;
  pen.fillRect(0, 0, side, side);
  pen.strokeStyle = theme.hatch;
  pen.lineWidth = Math.max(1, scale);
  pen.beginPath();
  for (const [x0, y0, x1, y1] of getHatchLines(side)) {
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
  }
  pen.stroke();
  const pattern = context.createPattern(cell, "repeat");
  if (!pattern) return theme.hatchGround;
  pattern.setTransform({ a: 1 / scale, d: 1 / scale });
  patterns.set(context, { name, pattern });
  return pattern;
}

export function paintHatch(surface: Surface, box: Box, theme: Theme): void {
  surface.context.fillStyle = surface.hatch?.(theme) ?? getPattern(surface, theme);
  surface.context.fillRect(box.left, box.top, box.width, box.height);
}
