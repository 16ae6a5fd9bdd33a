/** Responses that only the evidence panel and the text view load, and their paths. */

export interface WhyWeight {
  query: number;
  key: number;
  weight: number;
  /** The dot product of query and key. */
  dot: number;
  scale: number;
  /** What enters the softmax. */
  score: number;
  /** What position biases and the like add to the score. */
  bias: number | null;
  masked: boolean;
  /** Of the scores of the row. */
  log_sum_exp: number;
  /** The products of the components of query and key. */
  products: number[];
  /** The products of rotary pairs; `period` in tokens per turn. */
  frequencies: { dims: [number, number]; period: number; product: number }[] | null;
  /** The norm of the key's value; null when values were not recorded. */
  value_norm: number | null;
}

export interface TokenPrediction {
  /** Of this token given those before it, in nats. */
  surprise: number | null;
  /** Of this token among all tokens, from 1. */
  rank: number | null;
  /** The most likely tokens after this one. */
  next: [text: string, probability: number][];
}

export interface Predictions {
  pending: boolean;
  problem: string | null;
  tokens: TokenPrediction[];
}

export const evidencePaths = {
  why: (trace: string, layer: number, head: number, query: number, key: number): string =>
    `${trace}/${layer}/${head}/why?query=${query}&key=${key}`,
  predictions: (trace: string, from: number, to: number): string => `${trace}/predictions?from=${from}&to=${to}`,
};
