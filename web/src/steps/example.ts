/** The shipped numbers of a trained model, decoded. */

import type { Matrix } from "./attention";

interface ExampleHead {
  readonly layer: number;
  readonly head: number;
  readonly name: string;
  /** Rows of float32 in base64; queries and keys are not yet rotated. */
  readonly queries: string;
  readonly keys: string;
  readonly values: string;
  /** The columns of this head in W_O, in blocks of 4-bit numbers. */
  readonly output: string;
}

/** The largest logits of a position, and the log-sum-exp of the others at each temperature. */
export interface StoredLogits {
  readonly tokens: readonly string[];
  readonly logits: readonly number[];
  readonly rest: readonly number[];
}

export interface ExampleData {
  readonly model: string;
  readonly tokens: readonly string[];
  readonly rotaryBase: number;
  readonly heads: readonly ExampleHead[];
  readonly temperatures: readonly number[];
  readonly nextTokens: readonly StoredLogits[];
}

export const EXAMPLE_HEAD_DIM = 64;

const BLOCK = 32;
const BLOCK_BYTES = 8 + BLOCK / 2;

/** Rows of `EXAMPLE_HEAD_DIM` numbers from little-endian float32 in base64. */
export function decodeRows(text: string): Matrix {
  const view = decodeBytes(text);
  return Array.from({ length: view.byteLength / 4 / EXAMPLE_HEAD_DIM }, (_, row) =>
    Array.from({ length: EXAMPLE_HEAD_DIM }, (_unused, column) => view.getFloat32(4 * (row * EXAMPLE_HEAD_DIM + column), true)),
  );
}

/** Rows of `EXAMPLE_HEAD_DIM` numbers from blocks: the smallest number, the distance of its levels, and 32 levels of 4 bits. */
export function decodeBlocks(text: string): Matrix {
  const view = decodeBytes(text);
  const numbers = Array.from({ length: view.byteLength / BLOCK_BYTES }, (_, block) => {
    const start = block * BLOCK_BYTES;
    const [smallest, step] = [view.getFloat32(start, true), view.getFloat32(start + 4, true)];
    return Array.from({ length: BLOCK }, (_unused, at) => smallest + step * ((view.getUint8(start + 8 + (at >> 1)) >> (4 * (at % 2))) & 15));
  }).flat();
  return Array.from({ length: numbers.length / EXAMPLE_HEAD_DIM }, (_, row) => numbers.slice(row * EXAMPLE_HEAD_DIM, (row + 1) * EXAMPLE_HEAD_DIM));
}

function decodeBytes(text: string): DataView {
  return new DataView(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}
