import assert from "node:assert/strict";
import { formatMeasure, formatWeight, formatWeightColumn } from "../src/format_numbers";
import { formatHeadName } from "../src/server/protocol";
import { test } from "node:test";

import { chooseSize, coarsenTile, findHeadAt, getCellBox, getExtent, stepHead } from "../src/heads/grid_layout";
import { countLabels, getNextOrder, includesHead, listScoreNames, sortHeads, toggleHead, type ScoredHead } from "../src/heads/scored_heads";
import { getLabelShape } from "../src/heads/label_badge";
import { createPlot, createScale, findNearestDot, findNextDot } from "../src/heads/scatter";
import { createHeadLoader } from "../src/heads/head_loader";
import { readTile } from "../src/server/tile_codec";
import type { Meta } from "../src/server/protocol";
import { ResponseError, type Transport } from "../src/server/transport";
import type { HeadId } from "../src/state";
import { createBody } from "./tile_bodies";

const wait = (milliseconds = 0): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds));

function head(layer: number, index: number, scores: Record<string, number>, labels: string[] = ["mixed"]): ScoredHead {
  return { id: [layer, index], name: `L${layer}H${index}`, labels, scores };
}

const names = (heads: readonly ScoredHead[]): string[] => heads.map(({ name }) => name);

test("every pixel of a cell belongs to its head, and a gap to the cell left of it or above", () => {
  const heads = [3, 2, 3];
  for (const side of [32, 64]) {
    const size = { width: side, height: side };
    for (const [layer, count] of heads.entries()) {
      for (let index = 0; index < count; index++) {
        const { left, top, width, height } = getCellBox([layer, index], size);
        for (const [x, y] of [[left, top], [left + width - 1, top + height - 1]] as const) {
          assert.deepEqual(findHeadAt(x, y, heads, size), [layer, index]);
        }
      }
    }
    const { width, height } = getExtent(heads, size);
    assert.equal(findHeadAt(width + 1, 30, heads, size), null);
    assert.equal(findHeadAt(50, height + 1, heads, size), null);
    const missing = getCellBox([1, 2], size);
    assert.equal(findHeadAt(missing.left + 3, missing.top + 3, heads, size), null, "a layer with fewer heads ends earlier");
    assert.equal(findHeadAt(5, 60, heads, size), null, "the names are no pictures");
  }
});

test("the size of pictures depends on the width", () => {
  assert.equal(chooseSize([9, 9], 1000), 64);
  assert.equal(chooseSize([9, 12], 700), 32);
});

test("arrow keys move between cells and stop at the edges", () => {
  const heads = [4, 2, 4];
  const walk = (from: HeadId, ...keys: string[]): HeadId =>
    keys.reduce<HeadId>((at, key) => stepHead(at, key, heads) ?? at, from);
  assert.deepEqual(walk([0, 0], "ArrowRight", "ArrowRight", "ArrowDown"), [1, 1], "the shorter layer holds one back");
  assert.deepEqual(walk([0, 0], "ArrowLeft", "ArrowUp"), [0, 0]);
  assert.deepEqual(walk([1, 1], "End", "PageDown", "End"), [2, 3]);
  assert.deepEqual(walk([2, 3], "Home", "PageUp"), [0, 0]);
  assert.equal(stepHead([0, 0], "x", heads), null);
});

test("fewer bins keep the largest weight of those they replace, head by head", () => {
  const [bins, columns, heads] = [5, 7, 3];
  const codes = Array.from({ length: heads * bins * columns }, (_, index) => (index * 37) % 256);
  const tile = { ...readTile(createBody({ rows: heads * bins, columns, codes, y: bins })), hasMasked: true };
  const less = coarsenTile(tile, 3);
  assert.deepEqual([less.rows, less.columns, less.y, less.codes.length], [heads * 2, 3, 2, heads * 2 * 3]);
  for (let index = 0; index < heads; index++) {
    for (let down = 0; down < 2; down++) {
      for (let across = 0; across < 3; across++) {
        let most = 0;
        for (let row = down * 3; row < Math.min(bins, down * 3 + 3); row++)
          for (let column = across * 3; column < Math.min(columns, across * 3 + 3); column++)
            most = Math.max(most, codes[(index * bins + row) * columns + column] ?? 0);
        assert.equal(less.codes[(index * 2 + down) * 3 + across], most);
      }
    }
  }
  assert.equal(coarsenTile(tile, 1), tile);
});

test("heads are ordered by a score, and those without it come last either way", () => {
  const heads = [
    head(1, 0, { sink: 0.5 }),
    head(0, 1, { sink: 0.9 }),
    head(0, 0, { sink: 0.5 }),
    head(0, 2, { entropy: 3 }),
    head(2, 0, { sink: NaN }),
  ];
  assert.deepEqual(names(sortHeads(heads, "-sink")), ["L0H1", "L0H0", "L1H0", "L0H2", "L2H0"]);
  assert.deepEqual(names(sortHeads(heads, "sink")), ["L0H0", "L1H0", "L0H1", "L0H2", "L2H0"]);
  assert.deepEqual(names(sortHeads(heads, "")), ["L0H0", "L0H1", "L0H2", "L1H0", "L2H0"]);
  assert.deepEqual(names(sortHeads(heads, "-unheard_of")), names(sortHeads(heads, "")));
  assert.deepEqual(listScoreNames(heads), ["sink", "entropy"]);
});

test("clicks on a column sort descending, then ascending, then not", () => {
  assert.deepEqual(["", "-sink", "sink", "-entropy"].map((order) => getNextOrder(order, "sink")), [
    "-sink",
    "sink",
    "",
    "-sink",
  ]);
});

test("labels are counted, the commonest first", () => {
  const heads = [head(0, 0, {}, ["sink"]), head(0, 1, {}, ["induction", "sink"]), head(0, 2, {})];
  assert.deepEqual(countLabels(heads)[0], ["sink", 2]);
  assert.equal(countLabels(heads).length, 3);
});

test("a head is ablated and restored, and the list stays sorted", () => {
  const first = toggleHead([], [3, 5]);
  const both = toggleHead(first, [1, 7]);
  assert.deepEqual(both, [[1, 7], [3, 5]]);
  assert.ok(includesHead(both, [3, 5]) && !includesHead(both, [5, 3]));
  assert.deepEqual(toggleHead(both, [3, 5]), [[1, 7]]);
});

test("scales begin and end at round numbers around all values", () => {
  for (const values of [[0.013, 0.94], [3, 3], [0, 0], [-1.2, 407], [1e-9, 3e-9], [12, 12.0001]]) {
    const { low, high, ticks } = createScale(values);
    assert.ok(low <= Math.min(...values) && high >= Math.max(...values) && high > low, String(values));
    assert.ok(ticks.length >= 2 && ticks.length <= 8, `${values}: ${ticks}`);
  }
  assert.deepEqual(createScale([0.02, 0.97]).ticks, [0, 0.2, 0.4, 0.6, 0.8, 1]);
});

test("dots lie where their scores are, and heads without a score have none", () => {
  const heads = [head(0, 0, { a: 0, b: 0 }), head(0, 1, { a: 1, b: 1 }), head(0, 2, { a: 0.5 }), head(0, 3, { a: 0.5, b: 0.25 })];
  const { dots } = createPlot(heads, ["a", "b"], { left: 10, top: 20, width: 100, height: 200 });
  assert.deepEqual(dots.map(({ head: { name }, x, y }) => [name, x, y]), [
    ["L0H0", 10, 220],
    ["L0H1", 110, 20],
    ["L0H3", 60, 170],
  ]);
  assert.equal(findNearestDot(dots, 65, 174, 12)?.head.name, "L0H3");
  assert.equal(findNearestDot(dots, 60, 100, 12), null);
  assert.deepEqual(createPlot([], ["a", "b"], { left: 0, top: 0, width: 1, height: 1 }).dots, []);
});

test("every dot can be reached by arrows", () => {
  const heads = Array.from({ length: 9 }, (_, index) => head(0, index, { a: (index * 7) % 9, b: (index * 5) % 9 }));
  const { dots } = createPlot(heads, ["a", "b"], { left: 0, top: 0, width: 90, height: 90 });
  for (const [key, back] of [["ArrowRight", "ArrowLeft"], ["ArrowDown", "ArrowUp"]] as const) {
    let at = dots[0]?.head.id ?? [0, 0];
    for (let step = 0; step < 9; step++) at = findNextDot(dots, at, back)?.head.id ?? at;
    const seen = new Set([at.join()]);
    for (let step = 0; step < 9; step++) seen.add((at = findNextDot(dots, at, key)?.head.id ?? at).join());
    assert.equal(seen.size, 9, key);
  }
  assert.equal(findNextDot(dots, [0, 0], "x"), null);
});

test("every label has its own shape, and unknown labels have one, too", () => {
  const labels = ["induction", "duplicate", "agreement", "coreference", "previous", "next", "self", "local", "sink", "broad", "mixed"];
  assert.equal(new Set([...labels, "unheard of"].map(getLabelShape)).size, labels.length + 1);
  assert.equal(getLabelShape(undefined), getLabelShape("mixed"));
});

class Server implements Transport {
  readonly requested: string[] = [];
  running = 0;
  mostRunning = 0;
  pending = new Set<string>();
  refused = new Set<string>();
  async #answer<T>(path: string, value: () => T, signal?: AbortSignal): Promise<T> {
    this.requested.push(path);
    this.mostRunning = Math.max(this.mostRunning, ++this.running);
    await wait(5);
    this.running--;
    signal?.throwIfAborted();
    if (this.refused.has(path)) throw new ResponseError("this file does not hold that", 404);
    return value();
  }
  json<T>(path: string, signal?: AbortSignal): Promise<T> {
    const heads = [{ labels: ["sink"], scores: { sink: 0.5 } }, { labels: ["mixed"], scores: {} }];
    const pending = this.pending.delete(path);
    const answer = { scored_queries: 4, num_queries: 4, heads: pending ? [] : heads, meanings: {}, measures: {}, pending };
    return this.#answer(path, () => answer as T, signal);
  }
  bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    return this.#answer(path, () => createBody({ rows: 4, columns: 2, codes: [0, 1, 2, 3, 4, 5, 6, 7], y: 2 }), signal);
  }
  post<T>(): Promise<T> {
    throw new Error("not here");
  }
  stream<T>(): AsyncIterable<T> {
    throw new Error("not here");
  }
}

const createMeta = (trace: string, layers: number): Meta =>
  ({ trace, layers: Array.from({ length: layers }, () => ({ heads: 2, numbers: [0, 1], queries: 4, keys: 4 })) }) as unknown as Meta;

test("all layers are loaded, pictures first, from the layer in view on, two at a time", async () => {
  const server = new Server();
  const loader = createHeadLoader(server, () => undefined);
  loader.load(createMeta("aa", 5), "max", 3);
  for (let tries = 0; tries < 1000 && loader.heads.length < 10; tries++) await wait(5);
  const order = ["aa/3", "aa/4", "aa/0", "aa/1", "aa/2"];
  assert.deepEqual(server.requested, [...order.map((path) => `${path}/thumbs?ch=max`), ...order.map((path) => `${path}/heads`)]);
  assert.equal(server.mostRunning, 2);
  assert.equal(loader.heads.length, 10);
  assert.ok(loader.pictures.length === 5 && loader.pictures.every((tile) => tile?.hasMasked));
});

test("without pictures only scores are loaded, and another channel replaces the pictures", async () => {
  const server = new Server();
  const loader = createHeadLoader(server, () => undefined);
  const meta = createMeta("aa", 2);
  loader.load(meta, null, 0);
  await wait(60);
  assert.deepEqual(server.requested, ["aa/0/heads", "aa/1/heads"]);
  loader.load(meta, "max", 0);
  await wait(60);
  loader.load(meta, "mean", 0);
  assert.deepEqual(loader.pictures, []);
  await wait(60);
  assert.deepEqual(server.requested.slice(2), ["max", "max", "mean", "mean"].map((kind, index) => `aa/${index % 2}/thumbs?ch=${kind}`));
});

test("stopping cancels requests, and loading again resumes", async () => {
  const server = new Server();
  let changes = 0;
  const loader = createHeadLoader(server, () => changes++);
  const meta = createMeta("aa", 20);
  loader.load(meta, null, 0);
  await wait(12);
  loader.stop();
  const [requested, before] = [server.requested.length, changes];
  assert.ok(requested < 20);
  await wait(60);
  assert.deepEqual([server.requested.length, changes], [requested, before]);
  const had = loader.heads.length;
  loader.load(meta, null, 0);
  await wait(200);
  assert.ok(had > 0 && loader.heads.length === 40);
  assert.equal(new Set(loader.heads.map(({ name }) => name)).size, 40, "no head twice");
});

test("another trace starts over", async () => {
  const server = new Server();
  const loader = createHeadLoader(server, () => undefined);
  loader.load(createMeta("aa", 3), "max", 0);
  await wait(7);
  loader.load(createMeta("bb", 1), "max", 0);
  await wait(80);
  assert.deepEqual([loader.pictures.length, loader.heads.length], [1, 2]);
});

test("pending scores are polled, and an error response is reported and not retried", async () => {
  const server = new Server();
  server.pending.add("aa/0/heads");
  server.refused.add("aa/1/heads");
  const loader = createHeadLoader(server, () => undefined);
  loader.load(createMeta("aa", 2), null, 0);
  await wait(700);
  assert.deepEqual(server.requested.filter((path) => path === "aa/0/heads").length, 2);
  assert.deepEqual(server.requested.filter((path) => path === "aa/1/heads").length, 1);
  assert.equal(loader.problem, "this file does not hold that");
  assert.deepEqual([loader.heads.length, loader.scores[1]], [2, null]);
});

test("the layer of the current head is loaded first", async () => {
  const server = new Server();
  const loader = createHeadLoader(server, () => undefined);
  loader.load(createMeta("aa", 4), "max", 0, 2);
  await wait(60);
  assert.deepEqual(server.requested.slice(0, 4), [2, 0, 1, 3].map((layer) => `aa/${layer}/thumbs?ch=max`));
});

test("when the server does not answer, nothing more is requested until it is stopped, and the page is told", async () => {
  let [requested, changes] = [0, 0];
  const dead = { bytes: () => (requested++, Promise.reject(new TypeError("no answer"))), json: () => Promise.reject(new TypeError("no answer")) } as unknown as Server;
  const loader = createHeadLoader(dead, () => changes++);
  const meta = createMeta("aa", 4);
  loader.load(meta, "max", 0);
  await wait(20);
  const before = requested;
  loader.load(meta, "max", 0);
  await wait(20);
  assert.deepEqual([loader.hasStopped, requested, changes], [true, before, 1]);
  loader.stop();
  assert.equal(loader.hasStopped, false);
});

test("a head has its name in the model, also where only some layers and heads were recorded", () => {
  const named = (...names: string[]): Meta => ({ layers: names.map((name) => ({ name, heads: 1, numbers: [4] })) }) as unknown as Meta;
  assert.equal(formatHeadName(named("blocks.2.attention", "blocks.17.attention"), 1, 0), "L17H4");
  assert.equal(formatHeadName(named("blocks.0", "blocks.1"), 1, 0), "L1H4");
  assert.equal(formatHeadName(named("encoder.0", "decoder.0"), 1, 0), "L1H4", "numbers that do not rise are not those of layers");
  assert.equal(formatHeadName(named("first", "second"), 1, 0), "L1H4");
  assert.equal(formatHeadName(named("a text = 7"), 0, 0), "L0H4");
});

test("small numbers are written in one way", () => {
  assert.deepEqual([formatMeasure(3.24e-7), formatWeight(3.24e-7), formatWeightColumn(3.24e-7)], Array(3).fill("3.2\u00d710\u207b\u2077"));
  assert.deepEqual([formatMeasure(-0.0002), formatMeasure(0), formatMeasure(0.0421)], ["\u22122.0\u00d710\u207b\u2074", "0", "0.0421"]);
});
