import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeWeight, encodeWeight } from "../src/server/tile_codec";
import { chooseScale, createLookup, createUniformLookups, getEntry, getTable, type ColourScale } from "../src/paint/colour";
import { themes } from "../src/paint/surface";
import { COLOURS, DEFAULT_STATE } from "../src/state";

const usual: ColourScale = { colours: "cividis", range: [-20, 0], kind: "log" };
const bytes = (pixels: Uint32Array, code: number): number[] => [...new Uint8Array(pixels.buffer, code * 4, 4)];

test("every table has 256 different entries, so that a pixel identifies its entry", () => {
  for (const name of COLOURS) {
    const table = getTable(name);
    const entries = Array.from({ length: 256 }, (_, entry) => table.slice(entry * 3, entry * 3 + 3).join());
    assert.equal(new Set(entries).size, 256, name);
  }
});

test("the tables are the published ones", () => {
  const at = (name: (typeof COLOURS)[number], entry: number): number[] => [...getTable(name).slice(entry * 3, entry * 3 + 3)];
  assert.deepEqual([at("cividis", 0), at("cividis", 255)], [[0, 34, 78], [254, 232, 56]]);
  assert.deepEqual([at("viridis", 0), at("viridis", 255)], [[68, 1, 84], [253, 231, 37]]);
  assert.deepEqual([at("magma", 0), at("magma", 255)], [[0, 0, 4], [252, 253, 191]]);
  assert.deepEqual(at("grey", 100), [100, 100, 100]);
});

test("the tables grow brighter from end to end", () => {
  for (const name of COLOURS) {
    const table = getTable(name);
    const bright = (entry: number): number => 0.2126 * (table[entry * 3] ?? 0) + 0.7152 * (table[entry * 3 + 1] ?? 0) + 0.0722 * (table[entry * 3 + 2] ?? 0);
    for (let entry = 4; entry < 256; entry++) assert.ok(bright(entry) > bright(entry - 4), `${name} ${entry}`);
  }
});

test("masked is transparent, zero is the darkest entry and opaque", () => {
  for (const kind of ["log", "linear"] as const) {
    const pixels = createLookup({ ...usual, kind });
    assert.deepEqual(bytes(pixels, 0), [0, 0, 0, 0]);
    assert.deepEqual(bytes(pixels, 1), [0, 34, 78, 255]);
    assert.deepEqual(bytes(pixels, 255), [254, 232, 56, 255]);
  }
});

test("inside the range every code has its own colour", () => {
  const pixels = createLookup(usual);
  const first = encodeWeight(2 ** -19.9);
  const seen = new Set(pixels.slice(first, 256));
  assert.equal(seen.size, 256 - first);
});

test("the range is in bits and clamps at both ends", () => {
  assert.equal(getEntry(2 ** -20, usual), 0);
  assert.equal(getEntry(2 ** -30, usual), 0);
  assert.equal(getEntry(1, usual), 255);
  assert.equal(getEntry(2 ** -10, usual), 128);
  assert.equal(getEntry(0.5, { ...usual, range: [-8, -2] }), 255);
  assert.equal(getEntry(0, usual), 0);
});

test("linear runs from zero to the top of the range", () => {
  const scale: ColourScale = { ...usual, range: [-20, -1], kind: "linear" };
  assert.equal(getEntry(0.5, scale), 255);
  assert.equal(getEntry(0.25, scale), 128);
  assert.equal(getEntry(0.001, scale), 1);
});

test("the automatic scale is relative to uniform attention where a pixel covers many pairs, unless a range is set", () => {
  const choose = (change: object, stride: number): string => chooseScale({ ...DEFAULT_STATE, ...change }, stride, 5000).kind;
  assert.deepEqual([choose({}, 16), choose({}, 1), choose({ range: [-8, 0] }, 16)], ["uniform", "log", "log"]);
  assert.deepEqual([choose({ scale: "linear" }, 16), choose({ scale: "log" }, 16), choose({ scale: "uniform" }, 1)], ["linear", "log", "uniform"]);
});

test("relative to uniform attention, uniform is the darkest entry at every length, and twice as much is the same", () => {
  const scale = chooseScale({ ...DEFAULT_STATE, scale: "uniform" }, 1, 0);
  for (const keys of [1, 7, 300, 131_072]) {
    assert.equal(getEntry(1 / keys, scale, keys), 0);
    assert.equal(getEntry(2 / keys, scale, keys), 32);
    assert.equal(getEntry(0.25 / keys, scale, keys), 0);
  }
  assert.equal(getEntry(1, scale, 256), 255);
  const lookups = createUniformLookups(scale);
  const table = getTable("cividis");
  for (const keys of [1, 12.5, 4096]) {
    assert.deepEqual(bytes(lookups(keys), 0), [0, 0, 0, 0]);
    for (let code = 1; code < 256; code++) {
      const entry = getEntry(decodeWeight(code), scale, keys);
      assert.deepEqual(bytes(lookups(keys), code), [...table.slice(entry * 3, entry * 3 + 3), 255]);
    }
  }
});

/** Relative luminance and contrast, as WCAG 2 defines them. */
const luminance = (rgb: readonly number[]): number =>
  rgb.map((part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, part, index) => sum + part * ([0.2126, 0.7152, 0.0722][index] ?? 0), 0);

test("the darkest colour of weights is not the ground of the mask, in light and in dark", () => {
  for (const { hatchGround } of Object.values(themes)) {
    const ground = luminance([1, 3, 5].map((at) => parseInt(hatchGround.slice(at, at + 2), 16)));
    for (const name of COLOURS) {
      const dark = luminance([...getTable(name).slice(0, 3)]);
      assert.ok((Math.max(ground, dark) + 0.05) / (Math.min(ground, dark) + 0.05) > 1.4, `${name} on ${hatchGround}`);
    }
  }
});
