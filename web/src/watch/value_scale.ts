/** The colours of a statistic: where a value is between the ends of its scale, and which values are written there. */

import { formatMeasure } from "../format_numbers";
import type { WatchStatistic, WatchTable } from "./protocol";

export interface ValueScale {
  /** The value at its end; it begins at 0. */
  readonly highest: number;
  readonly kind: "linear" | "log";
  /** Whether low values are bright. */
  readonly isReversed: boolean;
}

const SHARES = new Set(["collapsed", "sink_weight"]);
const LOGARITHMIC = new Set(["max_logit", "max_query_norm", "max_key_norm"]);

/** The scale of a statistic, up to the largest value of the table; that of a share ends at 1. */
export function createScale({ name, lowest }: WatchStatistic, { values }: Pick<WatchTable, "values">): ValueScale {
  let highest = 0;
  for (const row of values) for (const value of row) if (value !== null && value > highest) highest = value;
  return {
    highest: SHARES.has(name) ? 1 : highest > 0 ? highest : 1,
    kind: LOGARITHMIC.has(name) ? "log" : "linear",
    isReversed: lowest,
  };
}

/** Where a value is on its scale, 0 to 1. */
export function toShare({ highest, kind }: Pick<ValueScale, "highest" | "kind">, value: number): number {
  const positive = Math.max(0, value);
  const share = kind === "log" ? Math.log1p(positive) / Math.log1p(highest) : positive / highest;
  return Math.min(1, share);
}

/** Which of 256 colours a value gets: bright is worse. */
export function toEntry(scale: ValueScale, value: number): number {
  const share = toShare(scale, value);
  return Math.round(255 * (scale.isReversed ? 1 - share : share));
}

/** Values to write at a scale, from its beginning to its end; those that would be close to the end are left out. */
export function getTicks(scale: ValueScale): readonly (readonly [share: number, text: string])[] {
  const { highest, kind } = scale;
  const inner =
    kind === "log" ? [1, 3, 10, 30, 100, 300, 1000, 10_000, 100_000, 1_000_000] : [0.25, 0.5, 0.75].map((one) => one * highest);
  const values = [0, ...inner.filter((one) => toShare(scale, one) < 0.88), highest];
  return values.map((value) => [toShare(scale, value), formatMeasure(value)] as const);
}
