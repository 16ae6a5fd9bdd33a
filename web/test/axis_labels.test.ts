import assert from "node:assert/strict";
import { test } from "node:test";
import { chooseLabels, chooseNumbers, type AxisView } from "../src/geometry/axis_labels";
import type { Section } from "../src/server/protocol";

const text = (position: number): string => `t${position}`;
const axis = (zoom: number, first = 0, length = 100_000): AxisView => ({ first, zoom, pixels: 700, length });
const places = (labels: { position: number }[], zoom: number): number[] => labels.map((label) => label.position * zoom).sort((one, other) => one - other);

test("far out only sections have labels, and the more important one wins a collision", () => {
  const sections: Section[] = [[1010, 1, "chapter"], [1000, 0.5, "paragraph"], [50_000, 0.5, "another"]];
  const labels = chooseLabels(axis(0.01), sections, text, 14);
  assert.deepEqual(labels.map((label) => label.text), ["chapter", "another"]);
});

test("labels do not overlap at any zoom", () => {
  const sections: Section[] = Array.from({ length: 2000 }, (_, index) => [index * 37, (index * 7919) % 101, `s${index}`]);
  sections.sort((one, other) => other[1] - one[1]);
  for (let zoom = 0.004; zoom < 11; zoom *= 1.7) {
    const at = places(chooseLabels(axis(zoom, 1234.5), sections, text, 14), zoom);
    at.forEach((place, index) => assert.ok(index === 0 || place - (at[index - 1] ?? 0) >= 14 - 1e-9, `zoom ${zoom}`));
    assert.ok(at.length > 5, `zoom ${zoom} has ${at.length} names`);
  }
});

test("from half a pixel to eleven per token every k-th token has a label, k a power of two", () => {
  const labels = chooseLabels(axis(2), [], text, 14);
  assert.deepEqual(labels.slice(0, 3).map((label) => label.position), [0, 8, 16]);
});

test("panning does not change which tokens have labels", () => {
  const here = chooseLabels(axis(2, 100), [], text, 14).map((label) => label.position);
  const there = chooseLabels(axis(2, 101.3), [], text, 14).map((label) => label.position);
  assert.deepEqual(here.filter((position) => position > 110 && position < 400), there.filter((position) => position > 110 && position < 400));
});

test("close up every token in view has a label, and none outside the matrix", () => {
  assert.equal(chooseLabels(axis(11, 10.5), [], text, 14).length, 65);
  assert.deepEqual(chooseLabels(axis(20, 0, 3), [], text, 14).map((label) => label.position), [0, 1, 2]);
});

test("a token whose text is not loaded has no label", () => {
  assert.equal(chooseLabels(axis(20), [], () => undefined, 14).length, 0);
});

test("numbers are round and far enough apart", () => {
  assert.deepEqual(chooseNumbers(axis(0.007), 60), [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 80_000, 90_000]);
  assert.deepEqual(chooseNumbers(axis(64, 2.5), 60).slice(0, 3), [3, 4, 5]);
  assert.deepEqual(chooseNumbers(axis(20, 0, 3), 60), [0]);
});
