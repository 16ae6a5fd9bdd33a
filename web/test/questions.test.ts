import assert from "node:assert/strict";
import { test } from "node:test";

import { formatValue } from "../src/questions/head_cells";
import { getPinnedLink, getQuestion } from "../src/questions/head_question";
import { getLabelStrength, HeadRankingStore } from "../src/questions/head_ranking";
import { parseFilter, parseQuestion, resolvePositions } from "../src/questions/parse_question";
import { describeLink, joinParts } from "../src/questions/sentences";
import type { HeadLinks, LayerScores, Meta } from "../src/server/protocol";
import { ResponseError, type Transport } from "../src/server/transport";
import { DEFAULT_STATE, type State } from "../src/state";

test("a question is text, positions, a head, a link, a filter or a command", () => {
  const cases: [string, unknown][] = [
    ["  ", { kind: "empty" }],
    ["cobalt", { kind: "text", text: "cobalt" }],
    ["the first 3 words", { kind: "text", text: "the first 3 words" }],
    ["L18H8", { kind: "head", layer: 18, head: 8 }],
    ["l18 h8", { kind: "head", layer: 18, head: 8 }],
    ["18.8", { kind: "head", layer: 18, head: 8 }],
    ["8,191", { kind: "positions", positions: { first: 8191, last: 8191 } }],
    ["2285..2324", { kind: "positions", positions: { first: 2285, last: 2324 } }],
    ["is -> cobalt", { kind: "link", query: { words: "is" }, key: { words: "cobalt" } }],
    ["is→", { kind: "link", query: { words: "is" }, key: null }],
    ["-> cobalt", { kind: "link", query: null, key: { words: "cobalt" } }],
    ["-1 -> 2285 .. 2,324", { kind: "link", query: { first: -1, last: -1 }, key: { first: 2285, last: 2324 } }],
    ["->", { kind: "text", text: "->" }],
    ["a -> b -> c", { kind: "text", text: "a -> b -> c" }],
    ["label: Induction", { kind: "label", label: "induction" }],
    ["entropy < 1", { kind: "score", filter: "entropy<1" }],
    ["mean distance>=12.5", { kind: "score", filter: "mean_distance>=12.5" }],
    ["> save", { kind: "command", text: "save" }],
  ];
  for (const [text, parsed] of cases) assert.deepEqual(parseQuestion(text), parsed, text);
});

test("positions count from the end when negative, and lie in the text", () => {
  assert.deepEqual(resolvePositions({ first: -1, last: -1 }, 10), { first: 9, last: 9 });
  assert.deepEqual(resolvePositions({ first: 2, last: -1 }, 10), { first: 2, last: 9 });
  for (const wrong of [{ first: 10, last: 10 }, { first: 5, last: 4 }, { first: -11, last: 3 }]) assert.equal(resolvePositions(wrong, 10), null);
});

test("a filter compares a score with a number", () => {
  assert.deepEqual([0, 1, 2].map((value) => parseFilter("entropy<1")?.test(value)), [true, false, false]);
  assert.deepEqual([0, 1, 2].map((value) => parseFilter("sink>=1")?.test(value)), [false, true, true]);
  assert.equal(parseFilter("entropy"), null);
});

test("weights of a ranking have three digits, so that they line up", () => {
  const question = getQuestion({ ...DEFAULT_STATE, pinQuery: 9, pinKey: 2 });
  assert.deepEqual([0.983, 0.04, 1, 2.3e-4, 22.6].map((value) => formatValue(question, value)), ["0.983", "0.0400", "1.00", "2.3×10⁻⁴", "22.6"]);
});

test("the question follows the pins, the choice and the comparison", () => {
  const ask = (change: Partial<State>): string => getQuestion({ ...DEFAULT_STATE, ...change }).kind;
  const compare = { trace: "", layer: 1, head: 0, mode: "side" } as const;
  assert.equal(ask({}), "label");
  assert.equal(ask({ question: "link" }), "label");
  assert.equal(ask({ filter: "entropy<1" }), "score");
  assert.equal(ask({ pinKey: 3 }), "link");
  assert.equal(ask({ pinKey: 3, question: "label" }), "label");
  assert.equal(ask({ pinKey: 3, question: "difference" }), "link");
  assert.equal(ask({ pinKey: 3, question: "difference", compare }), "difference");
  assert.equal(ask({ question: "ablation" }), "ablation");
  assert.deepEqual(getPinnedLink({ ...DEFAULT_STATE, pinQuery: 9, pinKey: 2, pinKeyEnd: 4 }), {
    query: { first: 9, last: 9 },
    key: { first: 2, last: 4 },
  });
});

const SHAPE = { causal: true, cross: false, offset: 0 };
const WORDS = ["The", " password", " is", " cobalt", ".", "\n", " It", " is"];
const sentence = (query: [number, number] | null, key: [number, number] | null, value: number | null, position: number | null = null, shape = SHAPE): string =>
  joinParts(
    describeLink(
      { query: query && { first: query[0], last: query[1] }, key: key && { first: key[0], last: key[1] } },
      { value, position },
      shape,
      (_, at) => WORDS[at],
    ),
  );

test("what is pinned is said in words", () => {
  assert.equal(sentence([7, 7], [3, 3], 0.634), "is gives 63% to cobalt, 4 tokens back");
  assert.equal(sentence([7, 7], [6, 6], 0.0504), "is gives 5.0% to It, 1 token back");
  assert.equal(sentence([7, 7], [7, 7], 0.2), "is gives 20% to itself");
  assert.equal(sentence([2, 2], [3, 3], 0), "is cannot attend to cobalt: it is masked");
  assert.equal(sentence([2, 2], [3, 3], 0.5, null, { ...SHAPE, causal: false }), "is gives 50% to cobalt, 1 token ahead");
  assert.equal(sentence([7, 7], [1, 4], 0.945), "is gives 95% to the 4 tokens from password (1) to . (4)");
  assert.equal(sentence([6, 7], [3, 3], 0.3), "the 2 tokens from It (6) to is (7) give 30% on average to cobalt");
  assert.equal(sentence([7, 7], null, 0.634, 3), "is attends most to cobalt: 63%, 4 tokens back");
  assert.equal(sentence([7, 7], null, 0.634, 7), "is attends most to itself: 63%");
  assert.equal(sentence(null, [3, 3], 2.34, 7), "cobalt receives 2.34 in all, most from is");
  assert.equal(sentence([99, 99], [5, 5], 0.25), "query 99 gives 25% to ⏎, 94 tokens back");
  assert.equal(sentence([7, 7], [3, 3], 0.5, null, { ...SHAPE, cross: true }), "is gives 50% to cobalt");
  assert.equal(joinParts(describeLink({ query: { first: 7, last: 7 }, key: null }, null, SHAPE, (_, at) => WORDS[at])), "is");
});

test("the strength of a label leaves out the share of the first token", () => {
  assert.equal(getLabelStrength({ labels: ["induction", "sink"], scores: { induction: 0.5, sink: 0.8 } }), 0.5);
  assert.equal(getLabelStrength({ labels: ["previous"], scores: { previous: 0.5, sink: 0.4 } }).toFixed(2), "0.18");
  assert.equal(getLabelStrength({ labels: ["broad"], scores: { evenness: 0.9 } }).toFixed(2), "0.18");
  assert.equal(getLabelStrength({ labels: ["sink"], scores: { sink: 0.9 } }), 0);
  assert.equal(getLabelStrength({ labels: ["mixed"], scores: { sink: 0.1 } }), 0);
});

const layer = { name: "a", heads: 2, numbers: [0, 1], queries: 9, keys: 9, causal: true, offset: 0, window: null, cross: false, has_texts: false, zeros_masked: false };
const meta = (tokens = 9, trace = "t"): Meta => ({
  ...{ trace, name: "", model: "", note: null, unmasked: null, origin: null, images: [] },
  layers: [layer, layer, layer].map((one) => ({ ...one, queries: tokens, keys: tokens })),
});

/** A transport that answers by path, and remembers what was asked and cancelled. */
function answering(answer: (path: string) => unknown, lines: unknown[] = []) {
  const asked: string[] = [];
  const cancelled: string[] = [];
  const load = (path: string, signal?: AbortSignal): Promise<never> =>
    new Promise((resolve, reject) => {
      asked.push(path);
      signal?.addEventListener("abort", () => {
        cancelled.push(path);
        reject(new DOMException("", "AbortError"));
      });
      setTimeout(() => {
        const found = answer(path);
        if (found instanceof Error) reject(found);
        else if (found !== undefined) resolve(found as never);
      });
    });
  const transport: Transport = {
    json: load,
    bytes: load,
    post: load,
    async *stream(): AsyncIterable<never> {
      for (const line of lines) yield line as never;
    },
  };
  return { transport, asked, cancelled };
}

/** Wait for what a slow machine takes longer for. */
const until = async (isTrue: () => boolean): Promise<void> => {
  for (let tries = 0; tries < 500 && !isTrue(); tries++) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.ok(isTrue());
};
const found = (first: number, ...values: number[][]): HeadLinks => ({
  measure: "weight",
  first_layer: first,
  layers: values.map((each) => ({ values: each, positions: null })),
});
const scores = (path: string): LayerScores => {
  const at = Number(path.split("/")[1]);
  const heads = [0, 1].map((head) => ({ labels: at === 1 ? ["induction"] : ["mixed"], scores: { induction: at / 4 + head / 8, sink: 0, entropy: at } }));
  return { scored_queries: 9, num_queries: 9, heads, meanings: {}, measures: {}, complete: true, pending: false };
};
const names = (ranking: HeadRankingStore): string => ranking.list.map(({ layer: at, head }) => `${at}.${head}`).join(" ");

test("heads are ranked by a pinned link, in one request, and filtered by label and score", async () => {
  const { transport, asked } = answering((path) => (path.includes("find_heads") ? found(0, [0.1, 0.5], [0.9, 0], [0.2, 0.3]) : scores(path)));
  const ranking = new HeadRankingStore(transport, null, () => undefined, new AbortController().signal);
  let changes = 0;
  ranking.subscribe(() => (changes += 1));
  const shown = { meta: meta(), layer: 0, head: 0 };
  const pinned = { ...DEFAULT_STATE, pinQuery: 8, pinKey: 2, pinKeyEnd: 4 };
  ranking.update(pinned, shown);
  assert.ok(ranking.pending);
  await until(() => !ranking.pending);
  assert.ok(!ranking.pending && changes > 0);
  assert.deepEqual(asked.filter((path) => path.includes("find")), ["t/find_heads?q0=8&q1=9&k0=2&k1=5"]);
  assert.equal(names(ranking), "1.0 0.1 2.1 2.0 0.0 1.1");
  assert.deepEqual(ranking.getLinkAnswer(1, 0), { value: 0.9, position: null });
  assert.deepEqual([ranking.findNext(1, 0, 1)?.head, ranking.findNext(1, 0, -1), ranking.findNext(9, 9, 1)?.layer], [1, undefined, 1]);
  ranking.update({ ...pinned, label: "induction" }, shown);
  await until(() => ranking.scored.length === 6);
  assert.equal(names(ranking), "1.0 1.1");
  ranking.update({ ...DEFAULT_STATE, filter: "entropy<2" }, shown);
  await until(() => !ranking.pending);
  assert.equal(names(ranking), "0.0 0.1 1.0 1.1");
  assert.equal(ranking.getValue(2, 0), 2);
  ranking.update(DEFAULT_STATE, shown);
  assert.deepEqual([ranking.question.kind, names(ranking).split(" ")[0]], ["label", "1.1"]);
});

test("a new question cancels the one before, and a failure is told", async () => {
  const { transport, asked, cancelled } = answering((path) =>
    path.includes("q0=1&") ? undefined : path.includes("q0=2&") ? new ResponseError("No such token.", 404) : scores(path),
  );
  const ranking = new HeadRankingStore(transport, null, () => undefined, new AbortController().signal);
  const shown = { meta: meta(), layer: 0, head: 0 };
  ranking.update({ ...DEFAULT_STATE, pinQuery: 1 }, shown);
  await until(() => asked.some((path) => path.includes("q0=1&")));
  ranking.update({ ...DEFAULT_STATE, pinQuery: 2 }, shown);
  assert.deepEqual(cancelled, ["t/find_heads?q0=1&q1=2"]);
  await until(() => !ranking.pending);
  assert.deepEqual([ranking.pending, ranking.problem, ranking.list.length], [false, "No such token.", 0]);
});

test("long texts are read layer by layer from the current one, and cells fill as they come", async () => {
  const { transport, asked } = answering((path) => {
    const first = Number(/l0=(\d)/.exec(path)?.[1]);
    return path.includes("find_heads") ? (first === 0 ? undefined : found(first, [first / 10, 0.05])) : scores(path);
  });
  const ranking = new HeadRankingStore(transport, null, () => undefined, new AbortController().signal);
  ranking.update({ ...DEFAULT_STATE, layer: 1, pinKey: 3 }, { meta: meta(20_000), layer: 1, head: 0 });
  await until(() => ranking.list.length === 4);
  assert.deepEqual(asked.filter((path) => path.includes("find")).map((path) => path.slice(-9)), ["l0=1&l1=2", "l0=2&l1=3", "l0=0&l1=1"]);
  assert.ok(ranking.pending);
  assert.equal(names(ranking), "2.0 1.0 1.1 2.1");
  assert.equal(ranking.getValue(0, 0), undefined);
});

test("heads are ranked by their effect when ablated, and by the difference to B", async () => {
  const effects = [{ layer: 0, head: 0, effect: 0.1 }, { layer: 1, head: 1, effect: 0.7 }, { layer: 2, head: 0, effect: -0.2 }];
  const { transport } = answering(
    (path) => (path.startsWith("u/find") ? found(0, [0.1, 0.1], [0.8, 0.1], [0, 0]) : path.includes("find") ? found(0, [0.1, 0.5], [0.2, 0], [0, 0]) : scores(path)),
    effects,
  );
  const ranking = new HeadRankingStore(transport, null, () => meta(9, "u"), new AbortController().signal);
  const shown = { meta: meta(), layer: 0, head: 0 };
  ranking.update({ ...DEFAULT_STATE, question: "ablation" }, shown);
  await until(() => !ranking.pending);
  assert.equal(names(ranking), "1.1 0.0 2.0");
  const compare = { trace: "0123456789abcdef", layer: 0, head: 0, mode: "side" } as const;
  ranking.update({ ...DEFAULT_STATE, question: "difference", pinQuery: 3, compare }, shown);
  await until(() => !ranking.pending);
  assert.equal(names(ranking).slice(0, 7), "1.0 0.1");
  assert.equal(ranking.getValue(1, 0)?.toFixed(2), "-0.60");
  ranking.update({ ...DEFAULT_STATE, question: "difference", pinQuery: 3, compare: { ...compare, trace: "", layer: 0, head: 1 } }, shown);
  await until(() => !ranking.pending);
  assert.equal(ranking.getValue(0, 0)?.toFixed(2), "-0.40");
});
