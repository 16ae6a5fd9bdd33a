/**
 * The prediction that each step asks for before its numbers are shown, and whether it came true.
 *
 * In: the numbers of the chosen pair. Out: a question, the choices or a slider, and the right answer.
 */

import { pluralize } from "../format_numbers";
import { formatToken } from "../paint/token_text";
import { getScale, type RowSteps } from "./attention";
import { EXAMPLE_DATA } from "./example_data";
import type { Settings, StageVectors } from "./stages";

export const STEPS = ["products", "scale", "mask", "exponential", "weight", "values", "output", "next"] as const;
export type StepName = (typeof STEPS)[number];

/** The numbers of the chosen pair. */
export interface Pair {
  readonly settings: Settings;
  readonly vectors: StageVectors;
  readonly query: number;
  readonly key: number;
  readonly row: RowSteps;
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

const MAKERS: Record<StepName, (pair: Pair) => Prediction> = {
  products: ({ row, key }) => {
    const score = row.dots[key] ?? 0;
    return { question: "Is the sum of the products positive, negative or zero?", choices: ["positive", "negative", "zero"], answer: score > 0 ? 0 : score < 0 ? 1 : 2 };
  },
  scale: ({ settings }) => {
    const factor = getScale(settings.headDim, settings.divide, settings.temperature);
    return { question: "Do the differences between the scores of this row become smaller, larger, or do they stay?", choices: ["smaller", "larger", "they stay"], answer: factor < 1 ? 0 : factor > 1 ? 1 : 2 };
  },
  mask: ({ row, query }) => {
    const [all, allowed] = [row.allowed.length, row.allowed.filter(Boolean).length];
    const counts = [...new Set([1, query + 1, all - 1, all])].filter((count) => count > 0 && count <= all).sort((one, other) => one - other);
    return { question: `To how many of the ${pluralize(all, "key")} may this query attend?`, choices: counts.map(String), answer: counts.indexOf(allowed) };
  },
  exponential: ({ row, vectors }) => {
    const choices = vectors.keyTokens.flatMap((token, key) => (row.allowed[key] ? [{ key, text: `key ${key + 1}: ${formatToken(token)}` }] : []));
    const largest = Math.max(...row.masked);
    const winners = row.masked.flatMap((score, key) => (score === largest ? [key] : []));
    const tie = winners.length > 1;
    const texts = choices.map(({ text }) => text);
    return { question: "Which key has the largest exponential?", choices: [...texts, "several are equal"], answer: tie ? texts.length : choices.findIndex(({ key }) => key === winners[0]) };
  },
  weight: ({ row, key }) => ({ question: "How large is the attention weight of this pair?", choices: [], answer: row.weights[key] ?? 0 }),
  values: () => ({ question: "Can a number of the output be larger than that number of every value?", choices: ["yes", "no"], answer: 1 }),
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
