/** Numbers of the steps as text. */

import { toSuperscript } from "../format_numbers";

/** Three decimals; a power of ten where they would say nothing. NaN is not known yet. */
export function formatNumber(number: number): string {
  return formatCell(number).replace(/e(.*)/, (_, exponent: string) => `×10${toSuperscript(exponent.replace("−", "-"))}`);
}

/** The same, short enough for a narrow column. */
export function formatCell(number: number): string {
  if (Number.isNaN(number)) return "?";
  if (!Number.isFinite(number)) return number < 0 ? "−∞" : "∞";
  const size = Math.abs(number);
  if (size >= 10_000 || (size > 0 && size < 0.0005)) return number.toExponential(0).replace("+", "").replaceAll("-", "−");
  if (Number.isInteger(number)) return String(number === 0 ? 0 : number).replace("-", "−");
  return number.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}
