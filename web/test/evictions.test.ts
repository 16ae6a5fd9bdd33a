import assert from "node:assert/strict";
import { test } from "node:test";

import { formatEviction, parseEvictions } from "../src/questions/evictions";
import { EvictedKeys } from "../src/server/evicted_keys";
import { POLICIES } from "../src/state";

test("an eviction is read as it is written", () => {
  for (const by of POLICIES)
    for (const context of [null, 9, 1700]) {
      const eviction = { by, keep: 40, context };
      assert.deepEqual(parseEvictions(formatEviction(eviction)), [eviction]);
    }
  assert.deepEqual(parseEvictions("keep 10 by re").map((eviction) => eviction?.by), ["received", "recent"]);
  assert.deepEqual(parseEvictions("Evict 30 %").map((eviction) => eviction?.keep), [30, 30, 30, 30, 30, 30]);
  assert.deepEqual(parseEvictions("keep").at(-1), null);
  for (const text of ["keeper", "keep the key", "keep 10 by h2o", "the"]) assert.deepEqual(parseEvictions(text), []);
});

test("runs of evicted keys are counted and listed", () => {
  const runs = [0, 2, 3, 1, 1, 4, 2];
  const expected = runs.flatMap((length, run) => Array<number>(length).fill(run % 2));
  const evicted = new EvictedKeys({ context: expected.length, kept: 6, runs, lost: 0 });
  const count = (from: number, to: number): number => expected.slice(Math.max(0, from), Math.max(0, to)).reduce((sum, one) => sum + one, 0);
  for (let from = -1; from <= 15; from++)
    for (let to = from; to <= 16; to++) {
      assert.equal(evicted.count(from, to), count(from, to));
      const listed = [...evicted.listRuns(from, to)];
      assert.equal(listed.reduce((sum, [start, stop]) => sum + stop - start, 0), count(from, to));
      assert.ok(listed.every(([start, stop]) => start < stop && count(start, stop) === stop - start));
    }
  assert.deepEqual([...evicted.listRuns(0, 99)], [[0, 2], [5, 6], [7, 11]]);
});
