/**
 * The distribution of the next token: temperature, then top-k, then top-p.
 *
 * In: the largest logits of a position, and the log-sum-exp of all others at the same temperature. Out: probabilities.
 * Tested against attnscope.models.sampling through tests/steps/golden.json.
 */

import { sumElements, type Vector } from "./attention";

export interface NextTokens {
  /** Of the listed tokens, in the order of their logits; 0 for those that top-k or top-p remove. */
  readonly probabilities: Vector;
  /** The probability of all tokens that are not listed. */
  readonly rest: number;
  /** Whether top-p removes tokens among the listed ones only; if not, it is left out. */
  readonly isTopPExact: boolean;
}

/**
 * @param logits The largest logits, in descending order.
 * @param restLogSumExp log(sum(exp(logit / temperature))) of all other tokens; -Infinity if there are none.
 * @param topK Keep this many tokens; 0 keeps all. At most the number of listed ones.
 * @param topP Keep the smallest set of tokens with at least this probability; 1 keeps all.
 */
export function computeNextTokens(logits: Vector, restLogSumExp: number, temperature: number, topK: number, topP: number): NextTokens {
  const scaled = logits.map((logit) => logit / temperature);
  const largest = Math.max(scaled[0] ?? -Infinity, restLogSumExp);
  const kept = scaled.map((logit, rank) => (topK === 0 || rank < topK ? Math.exp(logit - largest) : 0));
  const rest = topK === 0 ? Math.exp(restLogSumExp - largest) : 0;
  const sum = sumElements(kept) + rest;
  let before = 0;
  const nucleus = kept.map((share) => {
    const isKept = topP >= 1 || before < topP;
    before += share / sum;
    return isKept ? share : 0;
  });
  const isTopPExact = topP >= 1 || rest === 0 || before >= topP;
  const nucleusRest = topP >= 1 || before < topP ? rest : 0;
  const total = sumElements(nucleus) + nucleusRest;
  return { probabilities: nucleus.map((share) => share / total), rest: nucleusRest / total, isTopPExact };
}
