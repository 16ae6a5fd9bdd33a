// The ratio of the weights of two heads as a byte: the difference of two codes, since a code is a logarithm.
//
// 0: masked in one of the two. 1: both below 2^-20, too small to compare. Else 128 + code A - code B, cut at 126 steps, 15.9 bits.
// Each code lies within half a step of its weight, so the ratio lies within one step, 0.126 bits, of the exact one.
import { encodeWeight } from "../server/tile_codec";

const BITS_PER_STEP = 32 / 254;
const EQUAL = 128;
const MAX_STEPS = 126;
/** Bits: where both weights are smaller, their ratio means nothing. */
export const MIN_BITS = -20;
const MIN_CODE = encodeWeight(2 ** MIN_BITS);
export const TOO_SMALL = 1;

export function encodeRatio(one: number, other: number): number {
  if (one === 0 || other === 0) return 0;
  if (one < MIN_CODE && other < MIN_CODE) return TOO_SMALL;
  return EQUAL + Math.max(-MAX_STEPS, Math.min(MAX_STEPS, one - other));
}

/** The ratio a code stands for; NaN where there is none. */
export function decodeRatio(code: number): number {
  return code <= TOO_SMALL ? NaN : 2 ** ((code - EQUAL) * BITS_PER_STEP);
}

/** The ratio of two weights, under the same rules; null is masked. */
export function computeRatio(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return null;
  return Math.max(one, other) < 2 ** MIN_BITS ? NaN : one / other;
}
