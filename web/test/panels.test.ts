import assert from "node:assert/strict";
import { test } from "node:test";

import { isConnectionError, watchConnection } from "../src/server/connection";
import { LatestRequest, ResponseCache } from "../src/server/requests";
import { describeCell } from "../src/panels/live_region";
import { formatOrdinal, formatPercent, formatWeight, formatWeightColumn, toSuperscript } from "../src/format_numbers";
import { findFollowTarget } from "../src/pins";
import type { QueryReport } from "../src/server/protocol";
import { computeRank, findStrongest } from "../src/panels/ranking";
import { ResponseError, type Transport } from "../src/server/transport";

function transportOf(json: (path: string, signal?: AbortSignal) => Promise<unknown>): Transport {
  return {
    json: async <Answer>(path: string, signal?: AbortSignal) => (await json(path, signal)) as Answer,
    bytes: () => Promise.resolve(null),
    post: () => Promise.reject(new Error("not requested here")),
    async *stream() {
      // Nothing comes.
    },
  };
}

test("a cell is described in words", () => {
  assert.equal(
    describeCell({
      query: 512,
      key: 12,
      queryText: "cat",
      keyText: "The",
      value: 0.034,
      exact: true,
      rank: 2,
      seen: 513,
    }),
    "query 512 'cat', key 12 'The', weight 0.034, 2nd of 513 visible keys",
  );
  assert.equal(
    describeCell({ query: 1, key: 2, value: null, exact: true }),
    "query 1, key 2, masked: this query cannot attend to this key",
  );
  assert.match(describeCell({ query: 1, key: 2, value: 0.5, exact: false }), /weight about 0.5$/);
});

test("direction marks in a token are escaped", () => {
  assert.ok(!describeCell({ query: 1, key: 2, queryText: "a\u202eb", value: 1, exact: true }).includes("\u202e"));
});

test("numbers are formatted for readers", () => {
  assert.deepEqual([1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(formatOrdinal), [
    "1st",
    "2nd",
    "3rd",
    "4th",
    "11th",
    "12th",
    "13th",
    "21st",
    "102nd",
    "111th",
  ]);
  assert.deepEqual([0, 1, 0.0341234, 0.001, 0.00099, 0.000996, 1.5e-7].map(formatWeightColumn), [
    "0",
    "1.00",
    "0.0341",
    "0.00100",
    "9.9×10⁻⁴",
    "1.0×10⁻³",
    "1.5×10⁻⁷",
  ]);
  assert.deepEqual([0, 1, 0.034, 0.5, 1.5e-12, 0.9997].map(formatWeight), ["0", "1", "0.034", "0.5", "1.5×10⁻¹²", "0.9997"]);
  assert.equal(`2${toSuperscript("-2.5")}`, "2⁻²˙⁵");
  assert.deepEqual([0, 0.0001, 0.051, 0.5, 1].map(formatPercent), ["0.0%", "<0.1%", "5.1%", "50%", "100%"]);
});

test("the strongest of a block are all and only the largest, in order, at their places", () => {
  const columns = 37;
  const weights = Float32Array.from({ length: 23 * columns }, (_, index) => ((index * 7919) % 10_007) / 10_007);
  weights.forEach((_, index) => {
    if (index % 5 === 0) weights[index] = NaN;
  });
  const found = findStrongest(weights, columns, { query: 100, key: 200 }, 20);
  const largest = [...weights]
    .filter((weight) => !Number.isNaN(weight))
    .sort((one, other) => other - one)
    .slice(0, 20);
  assert.deepEqual(
    found.map(({ weight }) => weight),
    largest,
  );
  for (const { query, key, weight } of found) assert.equal(weights[(query - 100) * columns + key - 200], weight);
});

test("masked and zero weights are not links", () => {
  assert.deepEqual(findStrongest([NaN, 0, 0.5, NaN], 2, { query: 0, key: 0 }, 20), [{ query: 1, key: 0, weight: 0.5 }]);
});

test("a rank is counted in the whole row, and only bounded in a pooled one", () => {
  const row = { values: [0.1, 0.4, NaN, 0.2, 0.2], stride: 1 };
  assert.deepEqual(computeRank(3, 0.2, row, []), { rank: 2, exact: true });
  assert.deepEqual(computeRank(4, 0.2, row, []), { rank: 3, exact: true });
  const pooled = { values: [0.1, 0.1], stride: 32 };
  assert.deepEqual(
    computeRank(7, 0.3, pooled, [
      [9, 0.5],
      [7, 0.3],
    ]),
    { rank: 2, exact: true },
  );
  assert.deepEqual(
    computeRank(8, 0.1, pooled, [
      [9, 0.5],
      [7, 0.3],
    ]),
    { rank: 3, exact: false },
  );
});

const report = (position: number, strongest: [number, number][]): QueryReport => ({
  position,
  visible_keys: 10,
  entropy: 1,
  effective_keys: 2,
  mean_distance: 3,
  first_token: 0,
  strongest,
});
const self = { cross: false, offset: 0, queries: 10, keys: 10 };

test("following goes to the strongest key as a query, past the token itself and past a hidden sink", () => {
  const row = report(5, [
    [5, 0.5],
    [0, 0.3],
    [3, 0.2],
  ]);
  assert.deepEqual(findFollowTarget(row, self, false), { pinQuery: 0, pinKey: null });
  assert.deepEqual(findFollowTarget(row, self, true), { pinQuery: 3, pinKey: null });
  assert.equal(findFollowTarget(report(5, [[5, 1]]), self, false), null);
});

test("following a key of another sequence, or one before the first query, pins it", () => {
  assert.deepEqual(findFollowTarget(report(5, [[5, 1]]), { ...self, cross: true }, false), { pinQuery: 5, pinKey: 5 });
  assert.deepEqual(findFollowTarget(report(0, [[2, 1]]), { ...self, offset: 4, keys: 14 }, false), { pinQuery: 0, pinKey: 2 });
  assert.deepEqual(findFollowTarget(report(3, [[6, 1]]), { ...self, offset: 4, keys: 14 }, false), {
    pinQuery: 2,
    pinKey: null,
  });
});

test("a newer request cancels the older one", () => {
  const latest = new LatestRequest();
  const first = latest.start();
  const second = latest.start();
  assert.deepEqual([first.aborted, second.aborted], [true, false]);
  latest.cancel();
  assert.ok(second.aborted);
});

test("responses are cached, failures are not, and the oldest is dropped", async () => {
  const requested: string[] = [];
  const answers = new ResponseCache(
    transportOf((path) => {
      requested.push(path);
      return path === "bad" && requested.filter((name) => name === "bad").length === 1
        ? Promise.reject(new Error("no"))
        : Promise.resolve(path.length);
    }),
    2,
  );
  const { signal } = new AbortController();
  await assert.rejects(answers.json("bad", signal));
  assert.equal(await answers.json("bad", signal), 3);
  assert.equal(await answers.json("bad", signal), 3);
  await answers.json("a", signal);
  await answers.json("b", signal);
  await answers.json("bad", signal);
  assert.deepEqual(requested, ["bad", "bad", "a", "b", "bad"]);
});

test("only a missing response counts as a connection error", async () => {
  let lost = 0;
  const failing = (error: unknown): Promise<unknown> =>
    watchConnection(
      transportOf(() => Promise.reject(error)),
      () => (lost += 1),
      () => undefined,
    )
      .json("session")
      .catch(() => undefined);
  await failing(new TypeError("Failed to fetch"));
  assert.equal(lost, 1);
  await failing(new ResponseError("There is no such trace.", 404));
  await failing(new DOMException("gone", "AbortError"));
  assert.equal(lost, 1);
  assert.ok(!isConnectionError(new ResponseError("no", 500)));
});
