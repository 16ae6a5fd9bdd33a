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

const STRIP = 20;
const GAP = 3;
const LEGEND = 52;
const NUMBERS_TOP = 16;

const clampRounded = (low: number, value: number, high: number): number => Math.round(Math.min(high, Math.max(low, value)));

/** Width that the fitted matrix would not use goes to the names of the queries; `longest` is in characters, of the names of the keys. */
export function computeLayout(width: number, height: number, matrix: { queries: number; keys: number; has_texts: boolean }, longest = Infinity): MapLayout {
  const { queries, keys, has_texts: texts } = matrix;
  const numbersLeft = 14 + 7 * Math.max(2, String(queries).length);
  const namesTop = texts ? clampRounded(30, Math.min(Math.max(48, height * 0.12), 14 + 6 * longest), 92) : 4;
  const used = (height - namesTop - NUMBERS_TOP - STRIP - GAP - LEGEND) * (keys / queries) + numbersLeft + STRIP + GAP + namesTop * 0.45;
  const namesLeft = texts ? clampRounded(56, Math.max(width * 0.12, width - used), Math.min(210, width * 0.22)) : 16;
  const left = namesLeft + numbersLeft + STRIP + GAP;
  const top = namesTop + NUMBERS_TOP + STRIP + GAP;
  // Slanted names of the last columns lean out to the right.
  const right = texts ? Math.round(namesTop * 0.45) : 12;
  const plot = { left, top, width: Math.max(32, width - left - right), height: Math.max(32, height - top - LEGEND) };
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
    leftStrip: { left: namesLeft + numbersLeft, top, width: STRIP, height: plot.height },
    topStrip: { left, top: namesTop + NUMBERS_TOP, width: plot.width, height: STRIP },
    corner: { left: 0, top: 0, width: left - GAP, height: top - GAP },
    legend: { left: legend, top: bottom + 4, width: width - legend - 8, height: LEGEND - 4 },
    minimap: { left: plot.left + plot.width - small - 8, top: plot.top + 8, width: small, height: small },
  };
}
