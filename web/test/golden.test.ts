// The vectors that Python and the browser share: made from plain loops, by neither of the two.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { decodeWeight, encodeWeight, readHeader } from "../src/server/tile_codec";
import { ZoomPlan } from "../src/geometry/zoom_plan";

interface Ends {
  bins: number;
  start: number;
  lastStart: number;
  stop: number;
}

interface Golden {
  tile: number;
  plans: { queries: number; keys: number; deepest: number; levels: { z: number; stride: number; down: number; across: number; last: { rows: Ends; columns: Ends } }[] }[];
  codes: { value: number | null; code: number }[];
  values: { code: number; value: number | null }[];
  headers: Record<"dtype" | "channel" | "norm" | "flags" | "rows" | "columns" | "z" | "y" | "x" | "log2min" | "log2max", number>[] & { hex: string }[];
  matrices: { weights: number[][]; allowed: number[][]; levels: { stride: number; cells: number[][]; mean: number[][]; max: number[][] }[] }[];
}

const golden = JSON.parse(readFileSync("../tests/atlas/golden.json", "utf8")) as Golden;
const ends = (edges: number[]): Ends => ({
  bins: edges.length - 1,
  start: edges[0] ?? NaN,
  lastStart: edges[edges.length - 2] ?? NaN,
  stop: edges[edges.length - 1] ?? NaN,
});

test("zoom plans agree", () => {
  assert.ok(golden.plans.length > 10);
  for (const { queries, keys, deepest, levels } of golden.plans) {
    const plan = new ZoomPlan(queries, keys);
    assert.equal(plan.deepest, deepest);
    for (const { z, stride, down, across, last } of levels) {
      assert.equal(plan.getStride(z), stride);
      assert.deepEqual(plan.countTiles(z), [down, across]);
      const [rows, columns] = plan.getEdges(z, down - 1, across - 1);
      assert.deepEqual({ rows: ends(rows), columns: ends(columns) }, last);
    }
  }
});

test("codes of weights agree", () => {
  assert.ok(golden.codes.length > 10);
  for (const { value, code } of golden.codes) assert.equal(encodeWeight(value), code, String(value));
});

test("weights of codes agree", () => {
  assert.equal(golden.values.length, 256);
  for (const { code, value } of golden.values) {
    const ours = decodeWeight(code);
    if (value === null) assert.ok(Number.isNaN(ours));
    else assert.ok(Math.abs(ours - value) <= 1e-12 * value, `${code}: ${ours} is not ${value}`);
  }
});

test("headers agree", () => {
  assert.ok(golden.headers.length > 0);
  for (const { hex, flags, ...expected } of golden.headers) {
    const bytes = Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
    const { causalCut, partial, exact, ...header } = readHeader(bytes.buffer);
    assert.deepEqual(header, { ...expected, log2min: Math.fround(expected.log2min), log2max: Math.fround(expected.log2max) });
    assert.equal((causalCut ? 1 : 0) + (partial ? 2 : 0) + (exact ? 4 : 0), flags);
  }
});

test("the codes of pooled matrices are those of the pooled weights", () => {
  for (const { weights, allowed, levels } of golden.matrices) {
    for (const { stride, mean, max } of levels) {
      mean.forEach((row, y) =>
        row.forEach((code, x) => {
          const inside: number[] = [];
          for (let i = y * stride; i < Math.min((y + 1) * stride, weights.length); i++) {
            for (let j = x * stride; j < Math.min((x + 1) * stride, weights[i]?.length ?? 0); j++) {
              if (allowed[i]?.[j]) inside.push(weights[i]?.[j] ?? NaN);
            }
          }
          const average = inside.length ? inside.reduce((sum, weight) => sum + weight, 0) / inside.length : null;
          assert.equal(encodeWeight(average), code, `mean ${stride} ${y} ${x}`);
          assert.equal(encodeWeight(inside.length ? Math.max(...inside) : null), max[y]?.[x], `max ${stride} ${y} ${x}`);
        }),
      );
    }
  }
});
