/**
 * Attention of one head, with every intermediate number; positions; the projection W_O.
 *
 * In: rows of queries, keys and values. Out: new rows. Tested against tests/steps/golden.json.
 */

export type Vector = readonly number[];
export type Matrix = readonly Vector[];
export type MaskKind = "causal" | "bidirectional" | "cross";
export type Positions = "none" | "sinusoidal" | "rotary";

/** The rows of one head; in cross-attention there may be more or fewer keys than queries. */
export interface HeadVectors {
  readonly queries: Matrix;
  readonly keys: Matrix;
  readonly values: Matrix;
}

/** One query and all keys, from the products to the output of the head. */
export interface RowSteps {
  /** `products[key][dimension]`. */
  readonly products: Matrix;
  readonly dots: Vector;
  /** The dot products times the scale. */
  readonly scores: Vector;
  readonly allowed: readonly boolean[];
  /** The scores, with -Infinity for masked keys. */
  readonly masked: Vector;
  /** Subtracted from the scores before the exponential; 0 unless a score is so large that it would overflow. */
  readonly shift: number;
  readonly exponentials: Vector;
  readonly sum: number;
  readonly weights: Vector;
  /** `weighted[key]` is the value of the key times its weight. */
  readonly weighted: Matrix;
  readonly output: Vector;
}

/** Above it, the largest score is subtracted from all, which does not change the weights. */
const LARGEST_PLAIN_SCORE = 30;
const BASE = 10_000;

export function multiplyElements(one: Vector, other: Vector): number[] {
  return one.map((number, at) => number * (other[at] ?? 0));
}

export function sumElements(vector: Vector): number {
  return vector.reduce((sum, number) => sum + number, 0);
}

export function dot(one: Vector, other: Vector): number {
  return sumElements(multiplyElements(one, other));
}

export function addVectors(one: Vector, other: Vector): number[] {
  return one.map((number, at) => number + (other[at] ?? 0));
}

/** `matrix @ vector`, as a linear layer without bias computes it. */
export function project(matrix: Matrix, vector: Vector): number[] {
  return matrix.map((row) => dot(row, vector));
}

/** The factor of the dot products: 1 / sqrt(headDim), or 1, divided by the temperature. */
export function getScale(headDim: number, divide: boolean, temperature: number): number {
  return 1 / ((divide ? Math.sqrt(headDim) : 1) * temperature);
}

export function isAllowed(mask: MaskKind, query: number, key: number): boolean {
  return mask !== "causal" || key <= query;
}

/** All steps from one query to its output. */
export function attendRow({ queries, keys, values }: HeadVectors, query: number, scale: number, mask: MaskKind): RowSteps {
  const own = queries[query] ?? [];
  const products = keys.map((key) => multiplyElements(own, key));
  const dots = products.map(sumElements);
  const scores = dots.map((number) => number * scale);
  const allowed = keys.map((_, key) => isAllowed(mask, query, key));
  const masked = scores.map((score, key) => (allowed[key] ? score : -Infinity));
  return { products, dots, scores, allowed, ...softmaxRow(masked, values) };
}

/** From the scores of one query to its weights and its output; weights are 0 where all keys are masked. */
export function softmaxRow(masked: Vector, values: Matrix): Pick<RowSteps, "masked" | "shift" | "exponentials" | "sum" | "weights" | "weighted" | "output"> {
  const largest = Math.max(...masked);
  const shift = Number.isFinite(largest) && Math.abs(largest) > LARGEST_PLAIN_SCORE ? largest : 0;
  const exponentials = masked.map((score) => Math.exp(score - shift));
  const sum = sumElements(exponentials);
  const weights = exponentials.map((number) => (sum === 0 ? 0 : number / sum));
  const weighted = values.map((value, key) => value.map((number) => number * (weights[key] ?? 0)));
  const output = weighted.reduce<number[]>(addVectors, new Array<number>(values[0]?.length ?? 0).fill(0));
  return { masked, shift, exponentials, sum, weights, weighted, output };
}

/** The attention weights of all queries. */
export function computePattern(head: HeadVectors, scale: number, mask: MaskKind): Matrix {
  return head.queries.map((_, query) => attendRow(head, query, scale, mask).weights);
}

/** The outputs of all heads for one query, one after the other. */
export function concatenateHeads(heads: readonly HeadVectors[], query: number, scale: number, mask: MaskKind): number[] {
  return heads.flatMap((head) => attendRow(head, query, scale, mask).output);
}

/** The row of sinusoidal position embeddings: sin and cos of position / 10000^(2i / dim) in columns 2i and 2i + 1. */
export function getSinusoid(position: number, dim: number): number[] {
  return Array.from({ length: dim }, (_, column) => {
    const angle = position / BASE ** ((column - (column % 2)) / dim);
    return column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
  });
}

/** Rotate a query or key by its position; coordinates i and i + dim / 2 are a pair. An odd last coordinate stays. */
export function rotateRow(row: Vector, position: number, base = BASE): number[] {
  const half = Math.floor(row.length / 2);
  const rotated = [...row];
  for (let pair = 0; pair < half; pair++) {
    const angle = position * base ** (-pair / half);
    const [first, second] = [row[pair] ?? 0, row[pair + half] ?? 0];
    rotated[pair] = first * Math.cos(angle) - second * Math.sin(angle);
    rotated[pair + half] = second * Math.cos(angle) + first * Math.sin(angle);
  }
  return rotated;
}

/** The entropy of a row of weights, in bits. */
export function getEntropy(weights: Vector): number {
  return -sumElements(weights.map((weight) => (weight > 0 ? weight * Math.log2(weight) : 0)));
}
