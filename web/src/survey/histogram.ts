/** The distribution of a statistic as bars: small in a cell of the grid, large with its scales beside the passages. */

import { formatMeasure, formatWeight } from "../format_numbers";
import type { Box } from "../geometry/box";
import { alignHairline, fonts, type Surface, type Theme } from "../paint/surface";

/** A value of any statistic: shares may be tiny, and tokens many. */
export function formatValue(value: number): string {
  return Math.abs(value) < 0.001 ? formatWeight(value) : formatMeasure(value);
}

/** Shares as heights: square roots, so that what is rare can be seen beside what is common. */
export function toHeight(share: number): number {
  return Math.sqrt(Math.max(0, Math.min(1, share)));
}

/** Where a value stands between the first edge and the last, 0 to 1; edges need not be even. */
export function toPosition(edges: readonly number[], value: number): number {
  const bars = edges.length - 1;
  for (let at = 0; at < bars; at++) {
    const [low, high] = [edges[at] ?? 0, edges[at + 1] ?? 0];
    if (value < high) return (at + Math.max(0, (value - low) / (high - low))) / bars;
  }
  return 1;
}

/** The bars alone, and a line at the mean. */
export function paintBars(
  { context, scale }: Surface,
  box: Box,
  theme: Theme,
  shares: readonly number[],
  mean: number | null,
): void {
  const base = box.top + box.height;
  const step = box.width / shares.length;
  const gap = step >= 6 ? 1 : 0;
  context.fillStyle = theme.accent;
  shares.forEach((share, at) => {
    if (share <= 0) return;
    const height = Math.max(1 / scale, toHeight(share) * box.height);
    context.fillRect(box.left + at * step, base - height, step - gap, height);
  });
  if (mean === null) return;
  const x = alignHairline(box.left + mean * (box.width - 1), scale);
  context.strokeStyle = theme.key;
  context.lineWidth = Math.max(1, 2 / scale);
  context.beginPath();
  context.moveTo(x, box.top);
  context.lineTo(x, base);
  context.stroke();
}

const SHARES = [0.01, 0.1, 0.5, 1];
const LEFT = 36;
const FOOT = 18;

/** Where the bars of a large chart are. */
export function getChartBox(width: number, height: number): Box {
  return { left: LEFT, top: 8, width: Math.max(1, width - LEFT - 8), height: Math.max(1, height - 8 - FOOT) };
}

export interface Distribution {
  readonly edges: readonly number[];
  readonly shares: readonly number[];
  readonly mean: number | undefined;
  /** The middle nine tenths of all queries. */
  readonly middle: readonly [number, number] | null;
}

export function paintDistribution(surface: Surface, theme: Theme, { edges, shares, mean, middle }: Distribution): void {
  const { context, scale } = surface;
  const box = getChartBox(surface.width, surface.height);
  const base = box.top + box.height;
  context.font = `10px ${fonts.text}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.strokeStyle = theme.line;
  context.lineWidth = 1 / scale;
  context.beginPath();
  for (const share of SHARES) {
    const y = alignHairline(base - toHeight(share) * box.height, scale);
    context.moveTo(box.left, y);
    context.lineTo(box.left + box.width, y);
    context.fillStyle = theme.muted;
    context.fillText(`${100 * share}%`, box.left - 6, y);
  }
  context.moveTo(box.left, alignHairline(base, scale));
  context.lineTo(box.left + box.width, alignHairline(base, scale));
  context.stroke();
  paintBars(surface, box, theme, shares, mean === undefined ? null : toPosition(edges, mean));
  if (middle) {
    const [from, to] = middle.map((value) => box.left + toPosition(edges, value) * box.width) as [number, number];
    context.fillStyle = theme.key;
    context.fillRect(from, base + 1, Math.max(1, to - from), 2);
  }
  paintEdges(surface, theme, box, edges);
}

/** As many names of edges as have room. */
function paintEdges({ context }: Surface, theme: Theme, box: Box, edges: readonly number[]): void {
  context.fillStyle = theme.muted;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const right = box.left + box.width;
  const named = edges.map((edge) => formatMeasure(edge));
  const widest = Math.max(...named.map((name) => context.measureText(name).width));
  const every = Math.ceil(((widest + 10) * (edges.length - 1)) / box.width);
  // Half doublings are no round numbers, and of twenty steps each fourth or fifth is one.
  const steps = edges[2] !== undefined && edges[2] > 1 && edges[1] === 1 ? [2, 4, 8] : [1, 2, 4, 5, 10, 20];
  const stride = steps.find((one) => one >= every) ?? edges.length - 1;
  const first = steps[0] === 2 ? 1 : 0;
  for (let at = first; at < edges.length; at += stride) {
    const x = box.left + (at / (edges.length - 1)) * box.width;
    const half = context.measureText(named[at] ?? "").width / 2;
    context.fillText(named[at] ?? "", Math.min(right + 6 - half, x), box.top + box.height + 14);
  }
}
