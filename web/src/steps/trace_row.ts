/**
 * The softmax of one query of a trace, from its recorded vectors. All keys that are not listed are one key.
 *
 * In: a report of the explorer. Out: the same steps as those of the other stages. Tested against attnscope in tests/explorer.
 */

import { formatToken } from "../paint/token_text";
import type { RowReport } from "../server/protocol";
import { multiplyElements, softmaxRow, sumElements, type RowSteps, type Vector } from "./attention";
import type { PairNumbers } from "./predictions";

/** A pair of a trace; `row` ends with the other keys and the sink, where there are any. */
export interface TracePair extends PairNumbers {
  readonly report: RowReport;
}

export function makeTracePair(report: RowReport, position: number): TracePair {
  const { keys, scale } = report;
  const getName = (at: number): string => formatToken(keys[at]?.text ?? `#${keys[at]?.position ?? 0}`, 10);
  return {
    report,
    scale,
    row: computeTraceRow(report),
    key: Math.max(0, keys.findIndex((key) => key.position === position)),
    keyHeads: [...keys.map(({ position: own }, at) => `${own} ${getName(at)}`), ...listExtraKeys(report).map(({ name }) => name)],
    nameKey: (at) => `key ${keys[at]?.position ?? 0}: ${getName(at)}`,
  };
}

export function computeTraceRow(report: RowReport): RowSteps {
  const { keys, vector, scale } = report;
  const extra = listExtraKeys(report);
  const products = keys.map((key) => multiplyElements(vector, key.vector));
  const dots = products.map(sumElements);
  const scores = dots.map((number) => number * scale);
  const masked = keys.map((key, at) => (key.masked ? -Infinity : (scores[at] ?? NaN) + (key.bias ?? 0)));
  const softmax = softmaxRow([...masked, ...extra.map(({ score }) => score)], [...keys.map(({ value }) => value ?? []), ...extra.map(({ value }) => value)]);
  return { products, dots, scores, allowed: keys.map((key) => !key.masked), ...softmax };
}

/** What takes part in the softmax besides the listed keys. */
function listExtraKeys({ others, sink, keys }: RowReport): { readonly name: string; readonly score: number; readonly value: Vector }[] {
  const none = (keys[0]?.value ?? []).map(() => 0);
  return [
    ...(others.count > 0 ? [{ name: "others", score: others.score ?? -Infinity, value: others.value ?? [] }] : []),
    ...(sink === null ? [] : [{ name: "sink", score: sink, value: none }]),
  ];
}
