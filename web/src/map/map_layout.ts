// Where the parts of the map lie inside its element: names, numbers and strip on the left and above, the plot, the legend below.
import type { Box } from "../geometry/box";

export interface MapLayout {
  plot: Box;
  /** Names of queries, left of the plot; names of keys, above it. */
  leftNames: Box;
  topNames: Box;
  leftNumbers: Box;
  topNumbers: Box;
  leftStrip: Box;
  topStrip: Box;
  corner: Box;
  legend: Box;
  minimap: Box;
}

const STRIP_WIDTH = 20;
const GAP = 3;
const LEGEND_HEIGHT = 52;
const NUMBERS_TOP = 16;

const clampRounded = (low: number, value: number, high: number): number => Math.round(Math.min(high, Math.max(low, value)));

/** What stands around the plot; a figure may leave some of it out. */
export interface LayoutParts {
  readonly strips: boolean;
  readonly legend: boolean;
}

export const ALL_PARTS: LayoutParts = { strips: true, legend: true };

/** Width that the fitted matrix would not use goes to the names of the queries; `longest` is in characters, of the names of the keys. */
export function computeLayout(
  width: number,
  height: number,
  matrix: { queries: number; keys: number; has_texts: boolean },
  longest = Infinity,
  parts = ALL_PARTS,
): MapLayout {
  const { queries, keys, has_texts: texts } = matrix;
  const [strip, below] = [parts.strips ? STRIP_WIDTH : 4, parts.legend ? LEGEND_HEIGHT : 8];
  const numbersLeft = 14 + 7 * Math.max(2, String(queries).length);
  // So does height that it would not use, to the names of the keys.
  const unused = Number.isFinite(longest) ? height - NUMBERS_TOP - strip - GAP - below - (width * 0.88 - numbersLeft - strip - GAP) * (queries / keys) : 0;
  const namesTop = texts ? clampRounded(30, Math.min(Math.max(48, height * 0.12, unused), 14 + 6 * longest), 92) : 4;
  const used = (height - namesTop - NUMBERS_TOP - strip - GAP - below) * (keys / queries) + numbersLeft + strip + GAP + namesTop * 0.45;
  const shortest = Number.isFinite(longest) ? 14 + 7 * longest : 56;
  const namesLeft = texts ? clampRounded(56, Math.max(width * 0.12, width - used, shortest), Math.min(210, width * 0.22)) : 16;
  const left = namesLeft + numbersLeft + strip + GAP;
  const top = namesTop + NUMBERS_TOP + strip + GAP;
  // Slanted names of the last columns lean out to the right.
  const right = texts ? Math.round(namesTop * 0.45) : 12;
  const plot = { left, top, width: Math.max(32, width - left - right), height: Math.max(32, height - top - below) };
  const small = clampRounded(64, Math.min(plot.width, plot.height) * 0.22, 140);
  const bottom = plot.top + plot.height;
  // A narrow map needs all its width for the legend's words.
  const legend = width < 480 ? 12 : left;
  return {
    plot,
    leftNames: { left: 0, top, width: namesLeft, height: plot.height },
    topNames: { left, top: 0, width: plot.width, height: namesTop },
    leftNumbers: { left: namesLeft, top, width: numbersLeft, height: plot.height },
    topNumbers: { left, top: namesTop, width: plot.width, height: NUMBERS_TOP },
    leftStrip: { left: namesLeft + numbersLeft, top, width: strip, height: plot.height },
    topStrip: { left, top: namesTop + NUMBERS_TOP, width: plot.width, height: strip },
    corner: { left: 0, top: 0, width: left - GAP, height: top - GAP },
    legend: { left: legend, top: bottom + 4, width: width - legend - 8, height: below - 4 },
    minimap: { left: plot.left + plot.width - small - 8, top: plot.top + 8, width: small, height: small },
  };
}
