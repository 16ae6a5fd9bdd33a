// Bars and lines for the inspector: as little chart as the numbers need.
import type { Box } from "../geometry/box";
import { alignHairline, fonts, type Surface, type Theme } from "./surface";

export interface BarSeries {
  /** NaN is masked: drawn as nothing, not as zero. */
  values: ArrayLike<number>;
  colour: string;
  /** Index to draw in the theme's ink, or null. */
  marked?: number | null;
}

/** The value a chart's full height stands for. */
function findLargest(values: ArrayLike<number>): number {
  let largest = 0;
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? NaN;
    if (value > largest) largest = value;
  }
  return largest;
}

/** The largest value in each pixel column, so that a lone spike among thousands of bars is never lost. */
function poolColumns(values: ArrayLike<number>, columns: number): Float64Array {
  const result = new Float64Array(columns).fill(NaN);
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? NaN;
    const column = Math.floor((index * columns) / values.length);
    const before = result[column] ?? NaN;
    if (!(before >= value) && !Number.isNaN(value)) result[column] = value;
  }
  return result;
}

export function paintBars(surface: Surface, box: Box, theme: Theme, bars: BarSeries): void {
  const { context, scale } = surface;
  const top = findLargest(bars.values);
  const count = bars.values.length;
  const columns = Math.max(1, Math.floor(box.width * scale));
  const base = box.top + box.height;
  context.strokeStyle = theme.line;
  context.lineWidth = 1 / scale;
  context.beginPath();
  context.moveTo(box.left, alignHairline(base, scale));
  context.lineTo(box.left + box.width, alignHairline(base, scale));
  context.stroke();
  if (count === 0 || !(top > 0)) return;
  const crowded = count > columns;
  const drawn = crowded ? poolColumns(bars.values, columns) : bars.values;
  const step = box.width / drawn.length;
  const gap = step >= 4 ? 1 : 0;
  const marked = bars.marked ?? null;
  const markedAt = marked === null ? -1 : crowded ? Math.floor((marked * columns) / count) : marked;
  for (let index = 0; index < drawn.length; index++) {
    const value = drawn[index] ?? NaN;
    if (!(value > 0)) continue;
    const height = Math.max(1 / scale, Math.min(1, value / top) * box.height);
    context.fillStyle = index === markedAt ? theme.ink : bars.colour;
    context.fillRect(box.left + index * step, base - height, Math.max(1 / scale, step - gap), height);
  }
}

/** A step line over bins, with a name under every bin that has one. */
export interface StepSeries {
  values: ArrayLike<number>;
  names: readonly string[];
  colour: string;
}

export function paintSteps(surface: Surface, box: Box, theme: Theme, steps: StepSeries): void {
  const under = 14;
  const inner = { ...box, height: Math.max(1, box.height - under) };
  paintBars(surface, inner, theme, steps);
  const { context } = surface;
  context.fillStyle = theme.muted;
  context.font = `10px ${fonts.text}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  const step = box.width / Math.max(1, steps.values.length);
  let free = -Infinity;
  for (let index = 0; index < steps.names.length; index++) {
    const name = steps.names[index] ?? "";
    const at = box.left + index * step;
    if (name === "" || at < free || at + context.measureText(name).width > box.left + box.width + step) continue;
    context.fillText(name, at, box.top + box.height - 2);
    free = at + context.measureText(name).width + 8;
  }
}
