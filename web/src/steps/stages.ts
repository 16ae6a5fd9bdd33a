/**
 * The three stages of the page: three tokens by hand, a typed sentence without a model, a head of a trained model.
 *
 * In: the settings. Out: tokens, and queries, keys and values of each head. Edited numbers replace computed ones last.
 */

import { addVectors, getSinusoid, project, rotateRow, type HeadVectors, type MaskKind, type Matrix, type Positions, type Vector } from "./attention";
import { drawProjection, embedWord, MODEL_DIM, shuffle, splitWords } from "./embeddings";
import { decodeBlocks, decodeRows, EXAMPLE_HEAD_DIM } from "./example";
import { EXAMPLE_DATA } from "./example_data";

export type StageName = "hand" | "sentence" | "model";

export interface Settings {
  readonly stage: StageName;
  readonly divide: boolean;
  readonly temperature: number;
  readonly mask: MaskKind;
  readonly positions: Positions;
  readonly numHeads: number;
  /** d_k: the number of numbers of a query. */
  readonly headDim: number;
  /** The index of the head that is shown. */
  readonly head: number;
  /** 0 is the original order. */
  readonly shuffleSeed: number;
  readonly sentence: string;
  /** The keys and values of cross-attention. */
  readonly memory: string;
}

export interface StageVectors {
  readonly queryTokens: readonly string[];
  readonly keyTokens: readonly string[];
  readonly heads: readonly HeadVectors[];
  /** W_O: one row per number of the output, one column per number of the concatenated heads. */
  readonly output: Matrix;
}

export type EditedRows = "queries" | "keys" | "values" | "output";
/** Numbers by `rows/row/column`. */
export type Edits = Readonly<Record<string, number>>;

export const PRESETS = [
  "the dog that bit the man fled",
  "the cat sat on the mat",
  "the animal was tired because it ran",
  "time flies like an arrow",
  "a b a b a b",
];
const HAND_INPUTS: Matrix = [
  [1, 0],
  [0, 1],
  [1, 1],
];
const HAND_VALUES: Matrix = [
  [10, 0],
  [0, 10],
  [5, 5],
];
const HAND_DIM = 2;
const SENTENCE_VALUE_DIM = 4;

const SHARED = { divide: true, temperature: 1, positions: "none", numHeads: 1, head: 0, shuffleSeed: 0, sentence: PRESETS[0] ?? "", memory: "le chien a mordu" } as const;

export const DEFAULTS: Readonly<Record<StageName, Settings>> = {
  hand: { ...SHARED, stage: "hand", mask: "bidirectional", headDim: HAND_DIM },
  sentence: { ...SHARED, stage: "sentence", mask: "bidirectional", headDim: 8 },
  model: { ...SHARED, stage: "model", mask: "causal", positions: "rotary", headDim: EXAMPLE_HEAD_DIM },
};

/** The choices that a stage has; one choice means that it is fixed. */
export interface Choices {
  readonly masks: readonly MaskKind[];
  readonly positions: readonly Positions[];
  readonly numHeads: readonly number[];
  readonly headDims: readonly number[];
}

export function getChoices({ stage, numHeads, headDim }: Settings): Choices {
  const masks: readonly MaskKind[] = ["bidirectional", "causal", "cross"];
  if (stage === "hand") {
    const smallest = HAND_DIM / numHeads;
    return { masks, positions: headDim === 1 ? ["none", "sinusoidal"] : ["none", "sinusoidal", "rotary"], numHeads: [1, 2], headDims: [smallest, ...[2, 4, 8].filter((dim) => dim > smallest)] };
  }
  if (stage === "sentence") return { masks, positions: ["none", "sinusoidal", "rotary"], numHeads: [1, 2, 4], headDims: [2, 4, 8, 16, 32, 64] };
  return { masks: ["causal", "bidirectional"], positions: ["rotary", "none"], numHeads: [1], headDims: [EXAMPLE_HEAD_DIM] };
}

/** The heads that can be shown, by their names. */
export function getHeadNames({ stage, numHeads }: Settings): readonly string[] {
  if (stage === "model") return EXAMPLE_DATA.heads.map(({ layer, head, name }) => `layer ${layer}, head ${head}: ${name}`);
  return Array.from({ length: numHeads }, (_, head) => `head ${head + 1}`);
}

export function computeVectors(settings: Settings, edits: Edits = {}): StageVectors {
  const vectors = { hand: computeHand, sentence: computeSentence, model: computeModel }[settings.stage](settings);
  const shown = settings.stage === "model" ? 0 : settings.head;
  const heads = vectors.heads.map((head, number) =>
    number === shown
      ? {
          queries: applyEdits(head.queries, "queries", edits),
          keys: applyEdits(head.keys, "keys", edits),
          values: applyEdits(head.values, "values", edits),
        }
      : head,
  );
  return { ...vectors, heads, output: applyEdits(vectors.output, "output", edits) };
}

export function getEditKey(rows: EditedRows, row: number, column: number): string {
  return `${rows}/${row}/${column}`;
}

function applyEdits(matrix: Matrix, rows: EditedRows, edits: Edits): Matrix {
  if (Object.keys(edits).length === 0) return matrix;
  return matrix.map((vector, row) => vector.map((number, column) => edits[getEditKey(rows, row, column)] ?? number));
}

/** Queries and keys are the tokens themselves. More dimensions than two are zeros; two heads share the dimensions. */
function computeHand({ mask, positions, numHeads, headDim, shuffleSeed }: Settings): StageVectors {
  const order = getOrder(3, shuffleSeed);
  const isCross = mask === "cross";
  const keyOrder = isCross ? [0, 1] : order;
  const embed = (token: number, position: number): Vector => {
    const input = HAND_INPUTS[token] ?? [];
    return positions === "sinusoidal" ? addVectors(input, getSinusoid(position, HAND_DIM)) : input;
  };
  const split = (rows: Matrix, head: number, dim: number): Matrix => rows.map((row) => Array.from({ length: dim }, (_, at) => row[head * dim + at] ?? 0));
  const turn = (rows: Matrix): Matrix => (positions === "rotary" ? rows.map((row, position) => rotateRow(row, position)) : rows);
  const queries = order.map(embed);
  const keys = keyOrder.map(embed);
  const values = keyOrder.map((token) => HAND_VALUES[token] ?? []);
  const heads = Array.from({ length: numHeads }, (_, head) => ({
    queries: turn(split(queries, head, headDim)),
    keys: turn(split(keys, head, headDim)),
    values: split(values, head, HAND_DIM / numHeads),
  }));
  const name = (token: number): string => `x${token + 1}`;
  const output = Array.from({ length: HAND_DIM }, (_, row) => Array.from({ length: HAND_DIM }, (_unused, column) => (row === column ? 1 : 0)));
  return { queryTokens: order.map(name), keyTokens: keyOrder.map((token) => (isCross ? `m${token + 1}` : name(token))), heads, output };
}

/** Embeddings from a hash of the characters, and fixed random projections. */
function computeSentence({ sentence, memory, mask, positions, numHeads, headDim, shuffleSeed }: Settings): StageVectors {
  const words = splitWords(sentence);
  const queryTokens = getOrder(words.length, shuffleSeed).map((word) => words[word] ?? "");
  const keyTokens = mask === "cross" ? splitWords(memory) : queryTokens;
  const embed = (tokens: readonly string[]): Matrix =>
    tokens.map((token, position) => (positions === "sinusoidal" ? addVectors(embedWord(token), getSinusoid(position, MODEL_DIM)) : embedWord(token)));
  const turn = (rows: Matrix): Matrix => (positions === "rotary" ? rows.map((row, position) => rotateRow(row, position)) : rows);
  const [queryInputs, keyInputs] = [embed(queryTokens), embed(keyTokens)];
  const heads = Array.from({ length: numHeads }, (_, head) => {
    const apply = (name: string, dim: number, inputs: Matrix): Matrix => {
      const matrix = drawProjection(`${name} ${head}`, dim, MODEL_DIM);
      return inputs.map((input) => project(matrix, input));
    };
    return {
      queries: turn(apply("W_Q", headDim, queryInputs)),
      keys: turn(apply("W_K", headDim, keyInputs)),
      values: apply("W_V", SENTENCE_VALUE_DIM, keyInputs),
    };
  });
  return { queryTokens, keyTokens, heads, output: drawProjection("W_O", MODEL_DIM, numHeads * SENTENCE_VALUE_DIM) };
}

const decoded = new Map<number, HeadVectors & { readonly output: Matrix }>();

/** One head of a trained model. Shuffled rows get new positions, but the layers below do not run again. */
function computeModel({ head, positions, shuffleSeed }: Settings): StageVectors {
  const stored = EXAMPLE_DATA.heads[head];
  if (!stored) throw new Error(`no head ${head}`);
  const rows = decoded.get(head) ?? {
    queries: decodeRows(stored.queries),
    keys: decodeRows(stored.keys),
    values: decodeRows(stored.values),
    output: decodeBlocks(stored.output),
  };
  decoded.set(head, rows);
  const order = getOrder(EXAMPLE_DATA.tokens.length, shuffleSeed);
  const arrange = (matrix: Matrix): Matrix => order.map((token) => matrix[token] ?? []);
  const turn = (matrix: Matrix): Matrix =>
    positions === "rotary" ? matrix.map((row, position) => rotateRow(row, position, EXAMPLE_DATA.rotaryBase)) : matrix;
  const tokens = order.map((token) => EXAMPLE_DATA.tokens[token] ?? "");
  return {
    queryTokens: tokens,
    keyTokens: tokens,
    heads: [{ queries: turn(arrange(rows.queries)), keys: turn(arrange(rows.keys)), values: arrange(rows.values) }],
    output: rows.output,
  };
}

function getOrder(count: number, seed: number): number[] {
  return seed === 0 ? Array.from({ length: count }, (_, at) => at) : shuffle(count, seed);
}
