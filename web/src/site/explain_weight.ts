// How a weight was computed from its query and key, as the server reports it.
import type { WeightReport } from "../server/protocol";
import { ResponseError } from "../server/transport";
import { changeScore, findAllowed } from "./attention";
import type { OpenHead } from "./head_reader";

const NO_SCORES = "This layer was published with weights only, so it cannot show how a weight is computed.";

export async function explainWeight({ trace, index, reader }: OpenHead, query: number, key: number): Promise<WeightReport> {
  const { rule } = index;
  if (!rule) throw new ResponseError(NO_SCORES, 409);
  const [one, other, lse, valueNorm] = await Promise.all([reader.readQuery(query), reader.readKey(key), reader.readArray("lse", query, query + 1), reader.readValueNorm(key)]);
  const products = Array.from(one, (part, dim) => part * (other[dim] ?? 0));
  const dot = products.reduce((sum, part) => sum + part, 0);
  const score = changeScore(rule, rule.scale * dot, query, key);
  const logSum = lse[0] ?? -Infinity;
  const masked = findAllowed(rule.regions, query, key, key + 1).length === 0;
  const { rotary } = trace;
  const isRotated = rotary && products.length >= 2 * rotary.length;
  return {
    query,
    key,
    weight: masked ? 0 : Math.exp(score - logSum),
    dot,
    scale: rule.scale,
    score: Number.isFinite(score) ? score : null,
    bias: rule.steps.length === 0 ? null : score - rule.scale * dot,
    masked,
    log_sum_exp: Number.isFinite(logSum) ? logSum : null,
    products,
    frequencies: isRotated ? rotary.map(({ dims, period }) => ({ dims, period, product: (products[dims[0]] ?? 0) + (products[dims[1]] ?? 0) })) : null,
    value_norm: valueNorm,
  };
}
