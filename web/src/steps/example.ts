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
  /** The first rows of W_O, with the columns of this head. */
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
  readonly hiddenSize: number;
  readonly temperatures: readonly number[];
  readonly nextTokens: readonly StoredLogits[];
}

export const EXAMPLE_HEAD_DIM = 64;

/** Rows of `EXAMPLE_HEAD_DIM` numbers from little-endian float32 in base64. */
export function decodeRows(text: string): Matrix {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 4 / EXAMPLE_HEAD_DIM }, (_, row) =>
    Array.from({ length: EXAMPLE_HEAD_DIM }, (_unused, column) => view.getFloat32(4 * (row * EXAMPLE_HEAD_DIM + column), true)),
  );
}
