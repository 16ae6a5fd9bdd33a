/** Numbers formatted for readers. */

/** A weight in a column: always three digits, so that the columns line up. */
export function formatWeightColumn(weight: number): string {
  if (weight === 0) return "0";
  if (!Number.isFinite(weight)) return "none";
  return weight >= 0.001 ? weight.toPrecision(3) : formatSmallWeight(weight);
}

/** A weight in a sentence: three digits at most. */
export function formatWeight(weight: number): string {
  // One more digit just below 1, so that it is not rounded to 1.
  const digits = weight < 1 && weight >= 0.9995 ? 4 : 3;
  return weight >= 0.001 && Number.isFinite(weight) ? String(Number(weight.toPrecision(digits))) : formatWeightColumn(weight);
}

function formatSmallWeight(weight: number): string {
  return weight.toExponential(1).replace(/e(.*)/, (_, exponent: string) => `×10${toSuperscript(exponent)}`);
}

/** A number as an exponent. */
export function toSuperscript(exponent: string): string {
  return exponent.replace(/[-\d.]/g, (sign) => "⁻˙⁰¹²³⁴⁵⁶⁷⁸⁹"["-.0123456789".indexOf(sign)] ?? sign);
}

/** The logarithm of a ratio to the base 2, with its sign. */
export function formatLog2Ratio(ratio: number, digits: number): string {
  const bits = Math.log2(ratio);
  const size = Number.isFinite(bits) ? Math.abs(bits).toFixed(digits) : "\u221e";
  return `${Number(size) === 0 ? "" : bits < 0 ? "\u2212" : "+"}${size}`;
}

/** A share, in per cent. */
export function formatPercent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.1) return "<0.1%";
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)}%`;
}

const COUNT = new Intl.NumberFormat("en-US");

/** A count, in groups of three. */
export function formatCount(count: number): string {
  return COUNT.format(Math.round(count));
}

/** A number of tokens, keys or bits that need not be whole; three digits at most. */
export function formatMeasure(value: number): string {
  if (!Number.isFinite(value)) return "none";
  if (value !== 0 && Math.abs(value) < 0.001) return (value < 0 ? "\u2212" : "") + formatSmallWeight(Math.abs(value));
  return Math.abs(value) >= 100 ? formatCount(value) : String(Number(value.toPrecision(3)));
}

export function formatOrdinal(position: number): string {
  const tens = position % 100;
  const ending = tens >= 11 && tens <= 13 ? "th" : (["th", "st", "nd", "rd"][position % 10] ?? "th");
  return `${formatCount(position)}${ending}`;
}

export function pluralize(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

export function formatDuration(seconds: number): string {
  return seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}
