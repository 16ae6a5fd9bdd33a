import assert from "node:assert/strict";
import { test } from "node:test";
import { encodeWeight, readTile, type Tile } from "../src/server/tile_codec";
import { chooseBlock, findSpikes, isSpike } from "../src/tiles/spikes";
import { createBody } from "./tile_bodies";

test("a spike is strong and hidden by its mean", () => {
  assert.equal(isSpike(0.001, 0.5), true);
  assert.equal(isSpike(0.1, 0.5), false);
  assert.equal(isSpike(0, 0.09), false);
  assert.equal(isSpike(NaN, NaN), false);
});

const side = 256;
const tile = (codes: number[]): Tile => readTile(createBody({ rows: side, columns: side, codes }));
const faint = (): number[] => new Array<number>(side * side).fill(encodeWeight(1e-5));

test("every planted link is found at its place, the strongest first", () => {
  const max = faint();
  max[4 * side + 21] = encodeWeight(0.4);
  max[3 * side + 20] = encodeWeight(0.9);
  max[30 * side + 1] = encodeWeight(0.11);
  max[31 * side + 1] = encodeWeight(0.09);
  const spikes = findSpikes(tile(faint()), tile(max));
  assert.deepEqual(spikes.map(({ row, column }) => [row, column]), [[3, 20], [4, 21], [30, 1]]);
});

test("very many are thinned, and the strongest stays", () => {
  const max = new Array<number>(side * side).fill(encodeWeight(0.3));
  max[100 * side + 77] = encodeWeight(0.9);
  const spikes = findSpikes(tile(faint()), tile(max));
  assert.ok(spikes.length > 500 && spikes.length <= 2048, String(spikes.length));
  assert.deepEqual([spikes[0]?.row, spikes[0]?.column], [100, 77]);
});

test("marks have room: of each block of bins, the strongest", () => {
  const max = faint();
  max[16 * side + 16] = encodeWeight(0.3);
  max[18 * side + 17] = encodeWeight(0.9);
  max[24 * side + 16] = encodeWeight(0.2);
  const [means, maxima] = [tile(faint()), tile(max)];
  const list = (block: number): number[][] => findSpikes(means, maxima, block).map(({ row, column }) => [row, column]);
  assert.deepEqual(list(8), [[18, 17], [24, 16]]);
  assert.deepEqual(list(1), [[18, 17], [16, 16], [24, 16]]);
  assert.deepEqual([0.5, 1, 1.9, 2, 16, 40].map(chooseBlock), [32, 16, 8, 8, 1, 1]);
});
