/**
 * Vectors for any words without a trained model: numbers drawn from a hash of the characters, and fixed random
 * projections. In: a word, or the name of a matrix. Out: the same numbers each time.
 */

import type { Matrix, Vector } from "./attention";

export const MODEL_DIM = 16;
export const MAX_WORDS = 12;

/** Standard normal numbers from a text (FNV-1a, mulberry32 and Box-Muller). */
export function drawNormals(seed: string, count: number): number[] {
  const next = createRandom(hash(seed));
  return Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()));
}

/** The embedding of a word, which depends on its characters only; capitals do not count. */
export function embedWord(word: string): Vector {
  return drawNormals(`word ${word.toLowerCase()}`, MODEL_DIM);
}

/** A fixed random projection; its results have the variance of what it projects. */
export function drawProjection(name: string, rows: number, columns: number): Matrix {
  return Array.from({ length: rows }, (_, row) => drawNormals(`${name} ${row}`, columns).map((number) => number / Math.sqrt(columns)));
}

/** The words of a sentence, the first twelve of them. */
export function splitWords(sentence: string): string[] {
  return sentence.split(/\s+/u).filter(Boolean).slice(0, MAX_WORDS);
}

/** Numbers from 0 to n - 1 in a random order. */
export function shuffle(count: number, seed: number): number[] {
  const next = createRandom(seed);
  const order = Array.from({ length: count }, (_, at) => at);
  for (let at = count - 1; at > 0; at--) {
    const other = Math.floor(next() * (at + 1));
    [order[at], order[other]] = [order[other] ?? 0, order[at] ?? 0];
  }
  return order;
}

function hash(text: string): number {
  let code = 0x811c9dc5;
  for (const character of text) code = Math.imul(code ^ (character.codePointAt(0) ?? 0), 0x01000193);
  return code >>> 0;
}

/** Numbers from 0 to below 1. */
function createRandom(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
