/** Heads as dots on two of their scores: scales, the dot under the pointer, the next one by keyboard, the picture. */

import type { Box } from "../geometry/box";
import { alignHairline, fonts, type Surface, type Theme } from "../paint/surface";
import { formatMeasure } from "../format_numbers";
import type { HeadId } from "../state";
import { getLabelShape, MIXED_SHAPE } from "./label_badge";
import { isSameHead, type ScoredHead } from "./scored_heads";

export interface AxisScale {
  readonly low: number;
  readonly high: number;
  readonly ticks: readonly number[];
}

/** From round number to round number around all values, with about five of them on the way. */
export function createScale(values: readonly number[]): AxisScale {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const width = most - least || Math.abs(most) || 1;
  const power = 10 ** Math.floor(Math.log10(width / 4));
  const step = power * ([1, 2, 5].find((one) => width / (one * power) <= 5) ?? 10);
  const [first, last] = [Math.floor(least / step), Math.max(Math.ceil(most / step), Math.floor(least / step) + 1)];
  // Whole numbers of steps: sums of 0.1 would end in 0.30000000000000004.
  const computeTick = (_: unknown, index: number): number => Number(((first + index) * step).toPrecision(12));
  const ticks = Array.from({ length: last - first + 1 }, computeTick);
  return { low: ticks[0] ?? 0, high: ticks.at(-1) ?? 1, ticks };
}

export interface Dot {
  readonly head: ScoredHead;
  readonly x: number;
  readonly y: number;
}

export interface Plot {
  readonly box: Box;
  readonly across: AxisScale;
  readonly up: AxisScale;
  readonly dots: readonly Dot[];
}

/** Those heads that have both scores, at their places in a box. */
export function createPlot(heads: readonly ScoredHead[], [first, second]: readonly [string, string], box: Box): Plot {
  const known = heads.filter(({ scores }) => Number.isFinite(scores[first]) && Number.isFinite(scores[second]));
  const getValues = (name: string): number[] => (known.length > 0 ? known.map(({ scores }) => scores[name] ?? 0) : [0, 1]);
  const [across, up] = [createScale(getValues(first)), createScale(getValues(second))];
  const dots = known.map((head) => ({
    head,
    x: box.left + toShare(across, head.scores[first] ?? 0) * box.width,
    y: box.top + (1 - toShare(up, head.scores[second] ?? 0)) * box.height,
  }));
  return { box, across, up, dots };
}

function toShare({ low, high }: AxisScale, value: number): number {
  return (value - low) / (high - low);
}

export function findNearestDot(dots: readonly Dot[], x: number, y: number, within: number): Dot | null {
  let [best, least] = [null as Dot | null, within];
  for (const dot of dots) {
    const away = Math.hypot(dot.x - x, dot.y - y);
    if (away <= least) [best, least] = [dot, away];
  }
  return best;
}

/** The next dot to the right, left, above or below, by that one coordinate: every dot can be reached. */
export function findNextDot(dots: readonly Dot[], current: HeadId, key: string): Dot | null {
  const side = { ArrowRight: "x", ArrowLeft: "x", ArrowUp: "y", ArrowDown: "y" }[key] as "x" | "y" | undefined;
  if (!side) return null;
  const sorted = [...dots].sort((one, other) => one[side] - other[side]);
  const at = sorted.findIndex(({ head }) => isSameHead(head.id, current));
  const by = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  return sorted[at < 0 ? 0 : Math.min(sorted.length - 1, Math.max(0, at + by))] ?? null;
}

export interface ScatterStyle {
  /** Of the scores across and up. */
  readonly names: readonly string[];
  readonly current: HeadId;
  readonly hovered: HeadId | null;
  readonly isFaded: (head: ScoredHead) => boolean;
}

export function paintScatter(surface: Surface, theme: Theme, { box, across, up, dots }: Plot, look: ScatterStyle): void {
  const { context, scale } = surface;
  const [right, bottom] = [box.left + box.width, box.top + box.height];
  context.font = `11px ${fonts.text}`;
  context.textBaseline = "middle";
  context.fillStyle = theme.muted;
  context.strokeStyle = theme.line;
  context.lineWidth = 1 / scale;
  context.beginPath();
  for (const tick of across.ticks) {
    const x = alignHairline(box.left + toShare(across, tick) * box.width, scale);
    context.moveTo(x, box.top);
    context.lineTo(x, bottom);
    context.textAlign = "center";
    context.fillText(formatMeasure(tick), x, bottom + 12);
  }
  for (const tick of up.ticks) {
    const y = alignHairline(bottom - toShare(up, tick) * box.height, scale);
    context.moveTo(box.left, y);
    context.lineTo(right, y);
    context.textAlign = "right";
    context.fillText(formatMeasure(tick), box.left - 6, y);
  }
  context.stroke();
  context.fillStyle = theme.ink;
  context.textAlign = "right";
  context.fillText(`${look.names[0]} →`, right, bottom + 28);
  context.textAlign = "left";
  context.fillText(`${look.names[1]} ↑`, 4, box.top - 14);
  paintDots(surface, theme, dots, look);
}

function paintDots({ context, width }: Surface, theme: Theme, dots: readonly Dot[], look: ScatterStyle): void {
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.font = `12px ${fonts.text}`;
  for (const { head, x, y } of dots) {
    const shape = getLabelShape(head.labels[0]);
    context.globalAlpha = look.isFaded(head) ? 0.15 : 0.85;
    context.fillStyle = shape === MIXED_SHAPE ? theme.muted : theme.accent;
    // The middle of the ink and not of the letter, which stands on a line.
    const ink = context.measureText(shape);
    const [wide, high] = [
      ink.actualBoundingBoxRight - ink.actualBoundingBoxLeft,
      ink.actualBoundingBoxAscent - ink.actualBoundingBoxDescent,
    ];
    context.fillText(shape, x - wide / 2, y + high / 2);
  }
  context.globalAlpha = 1;
  context.font = `600 11px ${fonts.text}`;
  context.lineWidth = 2;
  for (const [id, colour] of [[look.current, theme.ink], [look.hovered, theme.key]] as const) {
    const dot = dots.find(({ head }) => isSameHead(head.id, id));
    if (!dot) continue;
    context.strokeStyle = context.fillStyle = colour;
    context.beginPath();
    context.arc(dot.x, dot.y, 10, 0, Math.PI * 2);
    context.stroke();
    const near = dot.x + 80 > width;
    context.textAlign = near ? "right" : "left";
    context.fillText(dot.head.name, dot.x + (near ? -14 : 14), dot.y - 8);
  }
}
