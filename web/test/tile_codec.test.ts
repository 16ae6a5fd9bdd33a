import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeWeight, encodeWeight, readFloats, readHeader, readTile } from "../src/server/tile_codec";
import { createBody } from "./tile_bodies";

test("masked, zero and the smallest weight have their own codes", () => {
  assert.equal(encodeWeight(null), 0);
  assert.equal(encodeWeight(0), 1);
  assert.equal(encodeWeight(2 ** -32), 1);
  assert.equal(encodeWeight(2 ** -40), 1);
  assert.equal(encodeWeight(1), 255);
  assert.equal(encodeWeight(1.5), 255);
});

test("a half step rounds away from zero", () => {
  // 254 x 8 / 32 is exactly 63.5.
  assert.equal(encodeWeight(2 ** -24), 65);
});

test("every code stands for a weight that has that code", () => {
  for (let code = 1; code < 256; code++) assert.equal(encodeWeight(decodeWeight(code)), code);
  assert.ok(Number.isNaN(decodeWeight(0)));
  assert.equal(decodeWeight(1), 0);
});

test("a weight survives coding within 4.5 %", () => {
  for (let bits = -31.9; bits <= 0; bits += 0.0137) {
    const value = 2 ** bits;
    assert.ok(Math.abs(decodeWeight(encodeWeight(value)) / value - 1) < 0.045, `2^${bits}`);
  }
});

test("a tile gives its header and its codes", () => {
  const tile = readTile(createBody({ rows: 2, columns: 3, codes: [0, 1, 2, 3, 4, 255], z: 7, y: 70_000, x: 3, channel: 1, flags: 3, log2min: -20.5, log2max: -1 }));
  assert.deepEqual([...tile.codes], [0, 1, 2, 3, 4, 255]);
  assert.deepEqual([tile.rows, tile.columns, tile.z, tile.y, tile.x, tile.channel], [2, 3, 7, 70_000, 3, 1]);
  assert.deepEqual([tile.causalCut, tile.partial, tile.exact], [true, true, false]);
  assert.deepEqual([tile.log2min, tile.log2max], [-20.5, -1]);
});

test("floats are read, with masked as NaN", () => {
  const floats = readFloats(createBody({ rows: 1, columns: 3, floats: [0.5, NaN, 0] }));
  assert.deepEqual([...floats.values], [0.5, NaN, 0]);
});

test("an invalid tile throws an error with a message", () => {
  assert.throws(() => readHeader(new ArrayBuffer(4)), /SLT1/);
  assert.throws(() => readHeader(new ArrayBuffer(64)), /SLT1/);
  assert.throws(() => readTile(createBody({ rows: 2, columns: 2, codes: [1] })), /36 bytes was expected|with 36 bytes/);
  assert.throws(() => readTile(createBody({ rows: 1, columns: 1, floats: [1] })), /type 2/);
});
