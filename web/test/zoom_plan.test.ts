import assert from "node:assert/strict";
import { test } from "node:test";
import { getAncestor, ZoomPlan } from "../src/geometry/zoom_plan";

test("the number of levels follows the longer side", () => {
  const deepest = (n: number): number => new ZoomPlan(n, n).deepest;
  assert.deepEqual([1, 2, 255, 256, 257, 512, 513, 131_072, 131_073].map(deepest), [0, 0, 0, 0, 1, 1, 2, 9, 10]);
  assert.equal(new ZoomPlan(3, 1000).deepest, 2);
});

test("the bins of a level cover every token once", () => {
  for (const n of [1, 2, 5, 255, 256, 257, 1021, 3000]) {
    const plan = new ZoomPlan(n, n);
    for (let z = 0; z <= plan.deepest; z++) {
      const [down] = plan.countTiles(z);
      const all: number[] = [0];
      for (let y = 0; y < down; y++) {
        const [rows] = plan.getEdges(z, y, 0);
        assert.equal(rows[0], all[all.length - 1]);
        all.push(...rows.slice(1));
      }
      assert.equal(all[all.length - 1], n);
      assert.ok(all.every((edge, index) => index === 0 || edge - (all[index - 1] ?? 0) <= plan.getStride(z)));
    }
  }
});

test("tiles outside the plan throw an error", () => {
  const plan = new ZoomPlan(300, 300);
  assert.throws(() => plan.getEdges(1, 2, 0), /2 x 2/);
  assert.throws(() => plan.getEdges(0, 0, 1), RangeError);
  assert.throws(() => plan.getStride(2), RangeError);
  assert.throws(() => plan.getStride(-1), RangeError);
});

test("the level shown is the finest with bins of at least a pixel", () => {
  const plan = new ZoomPlan(131_072, 131_072);
  for (const zoom of [0.0076, 0.01, 0.0625, 0.3, 0.5, 0.9, 1, 1.5, 64]) {
    const z = plan.chooseLevel(zoom);
    assert.ok(plan.getStride(z) * zoom >= 1 - 1e-9);
    if (z < plan.deepest) assert.ok(plan.getStride(z + 1) * zoom < 1);
  }
  assert.equal(plan.chooseLevel(0.0001), 0);
});

test("a causal mask covers exactly the tiles without an allowed pair", () => {
  for (const [queries, keys] of [[1000, 1000], [300, 1000], [1000, 300], [257, 513]] as const) {
    const plan = new ZoomPlan(queries, keys);
    for (let z = 0; z <= plan.deepest; z++) {
      for (const tile of plan.findTiles(z, { query: [0, queries], key: [0, keys] })) {
        const [rows, columns] = plan.getEdges(tile.z, tile.y, tile.x);
        const allowed = (columns[0] ?? 0) <= (rows[rows.length - 1] ?? 0) - 1 + (keys - queries);
        assert.equal(plan.isAboveDiagonal(tile, keys - queries), !allowed, `${z}/${tile.y}/${tile.x} of ${queries} x ${keys}`);
      }
    }
  }
});

test("findTiles returns the tiles that touch a view and no others", () => {
  const plan = new ZoomPlan(1024, 1024);
  assert.deepEqual(plan.findTiles(2, { query: [255, 257], key: [512, 513] }), [{ z: 2, y: 0, x: 2 }, { z: 2, y: 1, x: 2 }]);
  assert.deepEqual(plan.findTiles(2, { query: [-300, 1], key: [900, 5000] }), [{ z: 2, y: 0, x: 3 }]);
});

test("an ancestor contains its descendant", () => {
  assert.deepEqual(getAncestor({ z: 9, y: 511, x: 300 }, 3), { z: 6, y: 63, x: 37 });
});
