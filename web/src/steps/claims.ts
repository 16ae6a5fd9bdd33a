/** Claims of texts about attention, with the verdicts of labs; written by scripts/make_labs.py. */

import type { StepName } from "./predictions";

/** A verdict includes its condition, if it has one. */
export const CLAIMS: Readonly<Record<StepName, Readonly<Record<"claim" | "text" | "verdict" | "lab", string>>>> = {
  products: { claim: "38", text: "q.k of d_k standard normal components has mean 0 and variance d_k.", verdict: "holds", lab: "scaling" },
  scale: { claim: "2", text: "Dividing scores by sqrt(d_k) is a softmax at that temperature.", verdict: "holds", lab: "scaling" },
  mask: { claim: "7", text: "Under a causal mask the upper triangle is exactly 0, rows sum to 1 and position 0 attends only to itself.", verdict: "holds", lab: "masks" },
  exponential: { claim: "1b", text: "Without the scaling, softmax saturates: at d_k = 512 one key gets practically everything.", verdict: "holds when it is about a typical draw: about one in seven leaves more than a tenth to the other keys", lab: "scaling" },
  weight: { claim: "5", text: "In self-attention a token always pays the most attention to itself.", verdict: "does not hold", lab: "worked_examples" },
  values: { claim: "45", text: "Three tokens by hand: the third output is a near-uniform mix of all three values.", verdict: "does not hold", lab: "worked_examples" },
  output: { claim: "12", text: "Concatenating heads and projecting is the sum over heads of each head through its block of W_O.", verdict: "holds", lab: "multi_head_attention" },
  next: { claim: "28", text: "Exposure bias: at generation time small errors compound.", verdict: "holds when the context matters for long, as in text; where it is forgotten after two symbols, a model does not drift", lab: "exposure_bias" },
};
