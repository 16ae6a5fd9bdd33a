/**
 * The prediction that each step asks for before its numbers are shown, and whether it came true.
 *
 * In: the numbers of the chosen pair. Out: a question, the choices or a slider, and the right answer.
 */

import { pluralize } from "../format_numbers";
import { formatToken } from "../paint/token_text";
import type { RowSteps } from "./attention";
import { EXAMPLE_DATA } from "./example_data";
import type { Settings, StageVectors } from "./stages";

export const STEPS = ["products", "scale", "mask", "exponential", "weight", "values", "output", "next"] as const;
export type StepName = (typeof STEPS)[number];

/** The numbers of the chosen pair. */
export interface PairNumbers {
  /** The factor of the dot products. */
  readonly scale: number;
  /** The heads of columns: one for each weight of the row. */
  readonly keyHeads: readonly string[];
  /** The index of the key in the row. */
  readonly key: number;
  readonly row: RowSteps;
  /** A key by its place in the row, in a sentence. */
  nameKey(key: number): string;
}

/** A pair of a stage that computes its own queries and keys. */
export interface Pair extends PairNumbers {
  readonly settings: Settings;
  readonly vectors: StageVectors;
  readonly query: number;
}

export interface Prediction {
  readonly question: string;
  /** Empty for a slider from 0 to 1. */
  readonly choices: readonly string[];
  /** The index of the right choice, or the number that the slider is compared with. */
  readonly answer: number;
}

export function makePrediction(step: StepName, pair: Pair): Prediction {
  return MAKERS[step](pair);
}

/** Predictions that need the numbers of the pair alone. */
export const COMMON_MAKERS = {
  products: ({ row, key }) => {
    const score = row.dots[key] ?? 0;
    return { question: "Is the sum of the products positive, negative or zero?", choices: ["positive", "negative", "zero"], answer: score > 0 ? 0 : score < 0 ? 1 : 2 };
  },
  scale: ({ scale }) => ({
    question: "Do the differences between the scores of this row become smaller, larger, or do they stay?",
    choices: ["smaller", "larger", "they stay"],
    answer: scale < 1 ? 0 : scale > 1 ? 1 : 2,
  }),
  exponential: ({ row, nameKey }) => {
    const keys = row.allowed.flatMap((isKept, key) => (isKept ? [key] : []));
    const largest = Math.max(...keys.map((key) => row.masked[key] ?? -Infinity));
    const winners = keys.filter((key) => row.masked[key] === largest);
    const answer = winners.length > 1 ? keys.length : keys.indexOf(winners[0] ?? 0);
    return { question: "Which key has the largest exponential?", choices: [...keys.map(nameKey), "several are equal"], answer };
  },
  weight: ({ row, key }) => ({ question: "How large is the attention weight of this pair?", choices: [], answer: row.weights[key] ?? 0 }),
  values: () => ({ question: "Can a number of the output be larger than that number of every value?", choices: ["yes", "no"], answer: 1 }),
} satisfies Partial<Record<StepName, (pair: PairNumbers) => Prediction>>;

const MAKERS: Record<StepName, (pair: Pair) => Prediction> = {
  ...COMMON_MAKERS,
  mask: ({ row, query }) => {
    const [all, allowed] = [row.allowed.length, row.allowed.filter(Boolean).length];
    const counts = [...new Set([1, query + 1, all - 1, all])].filter((count) => count > 0 && count <= all).sort((one, other) => one - other);
    return { question: `To how many of the ${pluralize(all, "key")} may this query attend?`, choices: counts.map(String), answer: counts.indexOf(allowed) };
  },
  output: ({ vectors }) => {
    const mixes = vectors.output.some((row) => row.filter((number) => number !== 0).length > 1);
    return { question: "On how many numbers of the concatenated heads does one number of the output depend?", choices: ["one", "several or all"], answer: mixes ? 1 : 0 };
  },
  next: ({ query }) => {
    const tokens = EXAMPLE_DATA.nextTokens[query]?.tokens ?? [];
    const offered = [0, 1, 3, 9].map((rank) => tokens[rank] ?? "").sort();
    return { question: "Which of these tokens is the most likely to come next?", choices: offered.map((token) => formatToken(token)), answer: offered.indexOf(tokens[0] ?? "") };
  },
};

/** The result of a prediction, in a sentence. */
export function judgePrediction({ choices, answer }: Prediction, guess: number): { readonly isRight: boolean; readonly text: string } {
  if (choices.length === 0) {
    const difference = Math.abs(guess - answer);
    const isRight = difference <= 0.05;
    return { isRight, text: `You predicted ${guess.toFixed(2)}; it is ${answer.toFixed(3)}.` };
  }
  const isRight = guess === answer;
  return { isRight, text: isRight ? `Right: ${choices[answer] ?? ""}.` : `You predicted "${choices[guess] ?? ""}"; right is "${choices[answer] ?? ""}".` };
}
