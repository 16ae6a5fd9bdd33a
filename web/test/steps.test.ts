// The numbers of the page of steps against AttnScope's own, to 1e-6.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  attendRow,
  computePattern,
  concatenateHeads,
  getScale,
  getSinusoid,
  project,
  rotateRow,
  softmaxRow,
  type MaskKind,
  type Matrix,
  type Vector,
} from "../src/steps/attention";
import { drawNormals, drawProjection, embedWord, MAX_WORDS, shuffle, splitWords } from "../src/steps/embeddings";
import { computeNextTokens } from "../src/steps/next_token";
import type { RowReport } from "../src/server/protocol";
import { readTraceAddress, writeTraceAddress } from "../src/steps/trace_address";
import { makeTracePair } from "../src/steps/trace_row";

interface Golden {
  attention: { queries: Matrix; keys: Matrix; values: Matrix; mask: MaskKind; divide: boolean; temperature: number; scale: number; weights: Matrix; lse: Vector; output: Matrix }[];
  multi_head: { queries: Matrix[]; keys: Matrix[]; values: Matrix[]; output: Matrix; heads: Matrix; result: Matrix }[];
  trace_rows: { report: RowReport; weights: Vector; others: number; output: Vector }[];
  sinusoidal: { dim: number; rows: Matrix }[];
  rotary: { base: number; rows: Matrix; rotated: Matrix }[];
  next_tokens: { logits: Vector; restLogSumExp: number; temperature: number; topK: number; topP: number; probabilities: Vector; rest: number }[];
}

const TOLERANCE = 1e-6;
const golden = JSON.parse(readFileSync("../tests/steps/golden.json", "utf8")) as Golden;

function assertClose(ours: Vector, theirs: Vector | undefined, what: string): void {
  assert.equal(ours.length, theirs?.length, what);
  const errors = ours.map((number, at) => Math.abs(number - (theirs?.[at] ?? NaN)));
  assert.ok(errors.every((error) => error <= TOLERANCE), `${what}: off by ${Math.max(...errors)}`);
}

test("weights, sums and outputs agree", () => {
  assert.ok(golden.attention.length >= 7);
  for (const [number, { mask, divide, temperature, scale, weights, lse, output, ...head }] of golden.attention.entries()) {
    assertClose([getScale(head.queries[0]?.length ?? 0, divide, temperature)], [scale], "scale");
    computePattern(head, scale, mask).forEach((row, query) => assertClose(row, weights[query], `weights ${number}, ${query}`));
    head.queries.forEach((_, query) => {
      const row = attendRow(head, query, scale, mask);
      assertClose(row.output, output[query], `output ${number}, ${query}`);
      assertClose([Math.log(row.sum) + row.shift], [lse[query] ?? NaN], `log-sum-exp ${number}, ${query}`);
    });
  }
});

test("a query of a trace has the weights of all keys, with those that are not listed as one", () => {
  assert.ok(golden.trace_rows.length >= 3);
  for (const [number, { report, weights, others, output }] of golden.trace_rows.entries()) {
    const { row, keyHeads } = makeTracePair(report, 0);
    const count = report.keys.length;
    assertClose(row.weights.slice(0, count), weights, `weights ${number}`);
    assertClose([row.weights[count] ?? 0], [report.others.count > 0 ? others : (row.weights[count] ?? 0)], `others ${number}`);
    assertClose(row.output, output, `output ${number}`);
    assert.equal(keyHeads.length, row.weights.length);
  }
});

test("a query without an allowed key has weights of 0", () => {
  assert.deepEqual(softmaxRow([-Infinity, -Infinity], [[1], [2]]).weights, [0, 0]);
  assert.deepEqual(softmaxRow([-Infinity, 900], [[1], [2]]).output, [2]);
});

test("the address of a pair of a trace", () => {
  const address = { trace: "0123456789abcdef", layer: 3, head: 5, query: 131_071, key: 12 };
  assert.deepEqual(readTraceAddress(writeTraceAddress(address)), address);
  for (const wrong of ["", "#stage=hand&query=1&key=2", writeTraceAddress({ ...address, trace: "../x" }), writeTraceAddress({ ...address, query: -1 })]) assert.equal(readTraceAddress(wrong), null);
});

test("two heads, concatenated and through W_O, agree", () => {
  for (const { queries, keys, values, output, heads, result } of golden.multi_head) {
    const vectors = queries.map((those, head) => ({ queries: those, keys: keys[head] ?? [], values: values[head] ?? [] }));
    heads.forEach((expected, query) => {
      const ours = concatenateHeads(vectors, query, getScale(4, true, 1), "causal");
      assertClose(ours, expected, `heads ${query}`);
      assertClose(project(output, ours), result[query], `W_O ${query}`);
    });
  }
});

test("positions agree", () => {
  for (const { dim, rows } of golden.sinusoidal) rows.forEach((row, position) => assertClose(getSinusoid(position, dim), row, `sinusoid ${position}`));
  for (const { base, rows, rotated } of golden.rotary)
    rows.forEach((row, position) => assertClose(rotateRow(row, position, base), rotated[position], `rotary ${position}`));
});

test("next-token distributions agree", () => {
  assert.ok(golden.next_tokens.length >= 6);
  for (const { logits, restLogSumExp, temperature, topK, topP, probabilities, rest } of golden.next_tokens) {
    const ours = computeNextTokens(logits, restLogSumExp, temperature, topK, topP);
    assertClose([...ours.probabilities, ours.rest], [...probabilities, rest], `temperature ${temperature}, top-k ${topK}, top-p ${topP}`);
    assert.ok(ours.isTopPExact);
  }
  assert.ok(!computeNextTokens([1, 0], 5, 1, 0, 0.9).isTopPExact, "the listed tokens have less than 0.9");
});

test("scores that would overflow give weights all the same", () => {
  const head = { queries: [[1000]], keys: [[1], [0.999], [-1]], values: [[1], [2], [3]] };
  const { weights, shift } = attendRow(head, 0, 1, "bidirectional");
  assertClose(weights, [1 / (1 + Math.exp(-1)), 1 / (1 + Math.E), 0], "weights");
  assert.equal(shift, 1000);
});

test("vectors without a model are the same each time and have unit variance", () => {
  assert.deepEqual(embedWord("Dog"), embedWord("dog"));
  assert.notDeepEqual(embedWord("dog"), embedWord("god"));
  const numbers = drawNormals("variance", 20_000);
  const mean = numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  const variance = numbers.reduce((sum, number) => sum + (number - mean) ** 2, 0) / numbers.length;
  assert.ok(Math.abs(mean) < 0.03 && Math.abs(variance - 1) < 0.04, `${mean}, ${variance}`);
  const projected = project(drawProjection("W", 4000, 16), embedWord("dog"));
  const length = embedWord("dog").reduce((sum, number) => sum + number ** 2, 0) / 16;
  const spread = projected.reduce((sum, number) => sum + number ** 2, 0) / projected.length;
  assert.ok(Math.abs(spread / length - 1) < 0.1, `${spread / length}`);
});

test("a sentence has twelve words at most, and a shuffle keeps them all", () => {
  assert.deepEqual(splitWords("  the  dog\nfled "), ["the", "dog", "fled"]);
  assert.equal(splitWords("a ".repeat(40)).length, MAX_WORDS);
  assert.deepEqual([...shuffle(12, 5)].sort((one, other) => one - other), Array.from({ length: 12 }, (_, at) => at));
  assert.notDeepEqual(shuffle(12, 5), shuffle(12, 6));
});
