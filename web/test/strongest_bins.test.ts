import assert from "node:assert/strict";
import { test } from "node:test";
import { readTile } from "../src/server/tile_codec";
import { findStrongestBins } from "../src/tiles/strongest_bins";
import { createBody } from "./tile_bodies";

const tile = readTile(createBody({ rows: 3, columns: 4, codes: [0, 1, 9, 200, 50, 60, 200, 70, 255, 1, 1, 0] }));
const places = (count: number, rows: [number, number], columns: [number, number]): number[][] =>
  findStrongestBins(tile, { rows, columns }, count).map(({ row, column }) => [row, column]);

test("the strongest come first, and equals from the top", () => {
  assert.deepEqual(places(2, [0, 3], [0, 4]), [[2, 0], [0, 3]]);
  assert.deepEqual(places(3, [0, 3], [0, 4]), [[2, 0], [0, 3], [1, 2]]);
});

test("only the window counts, also where it reaches past the tile", () => {
  assert.deepEqual(places(2, [1, 9], [1, 9]), [[1, 2], [1, 3]]);
  assert.deepEqual(places(5, [-4, 1], [-4, 2]), []);
});

test("masked and zero are left out", () => {
  assert.equal(places(20, [0, 3], [0, 4]).length, 7);
});
