import assert from "node:assert/strict";
import { test } from "node:test";

import { ABSENT, decodeValues, findLargest, findPatch, findRegion, findSpecial, getFrame, getPosition, hidePositions, sumBox, toBox, toRuns } from "../src/picture/patch_values";
import { findPatchAt, getPatchArea } from "../src/picture/paint_picture";
import { choosePositions } from "../src/picture/picture_state";
import { countPositions, getPinnedLink, withoutRegion } from "../src/questions/head_question";
import { paths, type PatchSide } from "../src/server/protocol";
import { createStore, DEFAULT_STATE, fitToTrace, readAddress, writeAddress } from "../src/state";

/** A class token and two frames of 2 x 3 patches; the last patch is in another part of the sequence. */
const side: PatchSide = {
  grid: [2, 2, 3],
  box: [0.5, 0, 1, 1],
  positions: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ABSENT],
  special: [["class", 0, 1], ["register", 20, 22]],
};

test("a patch and its position are found from each other", () => {
  assert.equal(getPosition(side, 1, { row: 0, column: 2 }), 9);
  assert.deepEqual(findPatch(side, 9), { frame: 1, row: 0, column: 2 });
  assert.equal(findPatch(side, 0), null);
  assert.deepEqual([findSpecial(side, 0), findSpecial(side, 21), findSpecial(side, 5)], ["class", "register 1", null]);
});

test("a region is the ranges of its rows", () => {
  const box = toBox({ row: 1, column: 2 }, { row: 0, column: 1 });
  assert.deepEqual(box, { top: 0, left: 1, bottom: 1, right: 2 });
  assert.equal(toRuns(side, 0, box), "2-4,5-7");
  assert.equal(toRuns(side, 1, box), "8-10,11-12", "without the patch that is not there");
  assert.equal(toRuns(side, 0, { top: 0, left: 0, bottom: 1, right: 2 }), "1-7", "rows that follow each other are one range");
  assert.deepEqual(findRegion(side, 0, "2-4,5-7"), box);
  assert.equal(findRegion(side, 1, "2-4,5-7"), null);
});

test("values are those of a head and frame, without what is hidden", () => {
  const numbers = Float32Array.from({ length: 24 }, (_, index) => index);
  const values = decodeValues({ grid: side.grid, heads: 2, values: btoa(String.fromCharCode(...new Uint8Array(numbers.buffer))), elsewhere: [] });
  assert.deepEqual([...getFrame(values, side, 1, 0)], [12, 13, 14, 15, 16, 17]);
  const visible = hidePositions(values, side, new Set([6]));
  assert.ok(Number.isNaN(visible[5]) && Number.isNaN(visible[17]) && visible[16] === 16);
  assert.equal(findLargest(visible.subarray(0, 6)), 4);
  assert.equal(sumBox(getFrame(visible, side, 0, 0), 3, { top: 0, left: 1, bottom: 1, right: 2 }), 1 + 2 + 4);
});

test("a point is on a patch where the patches are", () => {
  const picture = { part: side.box, rows: 2, columns: 3 };
  const box = { left: 0, top: 0, width: 200, height: 60 };
  assert.deepEqual(getPatchArea(picture, box), { left: 100, top: 0, width: 100, height: 60 });
  assert.deepEqual(findPatchAt(picture, box, 199, 59), { row: 1, column: 2 });
  assert.equal(findPatchAt(picture, box, 99, 10), null);
});

test("without a pin the picture is about the class token, or about all queries", () => {
  const patches = { query: side, key: { ...side, special: [] } };
  assert.deepEqual(choosePositions(DEFAULT_STATE, patches), { kind: "query", positions: [0, 0], isDefault: true });
  assert.deepEqual(choosePositions({ ...DEFAULT_STATE, pinQuery: 4, pinQueryEnd: 6 }, patches), { kind: "query", positions: [4, 6], isDefault: false });
  assert.deepEqual(choosePositions({ ...DEFAULT_STATE, pictureKind: "key" }, patches), { kind: "received", positions: null, isDefault: true });
});

test("a region is a question of its own, which a new pin replaces", () => {
  const store = createStore({ ...DEFAULT_STATE, pinQuery: 9 });
  store.set({ pinKey: null, region: "2-4,5-7" });
  const link = getPinnedLink(store.get());
  assert.deepEqual(link, { query: { first: 9, last: 9 }, key: { first: 2, last: 6, runs: "2-4,5-7" } });
  assert.equal(link?.key && countPositions(link.key), 4);
  assert.deepEqual(withoutRegion(link), { query: { first: 9, last: 9 }, key: null });
  assert.equal(paths.findHeads("t", { query: [9, 10], key: [2, 7], runs: "2-4,5-7" }), "t/find_heads?q0=9&q1=10&runs=2-4,5-7");
  assert.equal(readAddress(writeAddress(store.get())).region, "2-4,5-7");
  assert.equal(fitToTrace(store.get(), [{ heads: 1, queries: 20, keys: 6 }]).region, "");
  store.set({ pinKey: 3 });
  assert.equal(store.get().region, "");
});
