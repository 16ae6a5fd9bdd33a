import assert from "node:assert/strict";
import { test } from "node:test";
import * as v from "../src/geometry/viewport";

const size = { width: 800, height: 600 };
const openView = (queries: number, keys: number, plot = size): v.Viewport => v.fitView({ queries, keys, ...plot });
const near = (one: number, other: number, message?: string): void => assert.ok(Math.abs(one - other) < 1e-6, `${one} is not ${other}. ${message ?? ""}`);

test("a matrix opens whole, a tiny one at the largest zoom", () => {
  near(openView(100_000, 100_000, size).zoom, 0.006);
  near(openView(150, 150, size).zoom, 4);
  near(openView(30, 30, size).zoom, 20);
  near(openView(5, 5, size).zoom, 64);
  near(openView(200, 200, size).zoom, 3);
});

test("zooming keeps the token under the pointer", () => {
  let view = v.centreView(openView(131_072, 131_072, size), 60_000, 50_000, 0.5);
  for (const [factor, x, y] of [[2, 100, 50], [1.3, 700, 590], [0.5, 3, 400], [8, 400, 300]] as const) {
    const before = [view.key + x / view.zoom, view.query + y / view.zoom] as const;
    view = v.zoomViewAt(view, view.zoom * factor, x, y);
    near(view.key + x / view.zoom, before[0]);
    near(view.query + y / view.zoom, before[1]);
  }
});

test("zoom stays between fit and 64 pixels per token", () => {
  const view = openView(10_000, 10_000, size);
  near(v.zoomViewAt(view, 1e9, 0, 0).zoom, 64);
  near(v.zoomViewAt(view, 1e-9, 0, 0).zoom, 0.06);
});

test("panning there and back changes nothing", () => {
  const view = v.centreView(openView(131_072, 131_072, size), 65_432.125, 54_321.5, 3.7);
  const back = v.panView(v.panView(view, 313, -77), -313, 77);
  near(back.query, view.query);
  near(back.key, view.key);
});

test("a pan ends at the borders of the matrix", () => {
  const view = v.centreView(openView(1000, 1000, size), 500, 500, 4);
  const end = v.panView(view, 1e9, 1e9);
  near(end.key, 1000 - 800 / 4);
  near(end.query, 1000 - 600 / 4);
  const start = v.panView(view, -1e9, -1e9);
  assert.deepEqual([start.query, start.key], [0, 0]);
});

test("centre and zoom define a view", () => {
  const view = v.centreView(openView(5000, 5000, size), 1234.5, 4321.25, 2.5);
  const centre = v.getCentre(view);
  const again = v.centreView(openView(5000, 5000, size), centre.query, centre.key, view.zoom);
  near(again.query, view.query);
  near(again.key, view.key);
});

test("reveal moves just enough, and not at all when the pair is in view", () => {
  const view = v.centreView(openView(5000, 5000, size), 1000, 1000, 4);
  assert.deepEqual(v.revealCell(view, 1000, 1000), view);
  const moved = v.revealCell(view, 4000, 1000);
  near(moved.key, view.key);
  const range = v.getVisibleRange(moved);
  assert.ok(range.query[0] <= 4000 && range.query[1] > 4000);
  assert.ok(range.query[1] - 4000 < 10);
});

test("the visible range holds whole tokens inside the matrix", () => {
  const view = v.centreView(openView(1000, 1000, size), 500, 500, 10);
  assert.deepEqual(v.getVisibleRange(view), { query: [470, 530], key: [460, 540] });
  assert.deepEqual(v.getVisibleRange(openView(7, 9, size)), { query: [0, 7], key: [0, 9] });
});

test("tile edges are whole device pixels, and neighbours share them", () => {
  for (const scale of [1, 1.25, 2]) {
    for (let zoom = 0.01; zoom < 64; zoom *= 1.37) {
      const edge = v.tokenToPixel(256 * 17, 4012.337, zoom, scale) * scale;
      near(edge, Math.round(edge));
    }
  }
});

test("a box zoom shows the box", () => {
  const view = openView(10_000, 10_000, size);
  const shown = v.getVisibleRange(v.zoomToBox(view, 100, 100, 80, 60));
  const [from, to] = [100 / view.zoom, 180 / view.zoom];
  assert.ok(shown.key[0] <= from && shown.key[1] >= to);
});

test("a matrix of one token can be shown", () => {
  const view = openView(1, 1, size);
  near(view.zoom, 64);
  assert.deepEqual(v.getVisibleRange(v.panView(view, 50, 50)), { query: [0, 1], key: [0, 1] });
});

test("an address without a place shows the whole matrix, in every window", () => {
  for (const [width, height] of [[1280, 420], [700, 560], [300, 400]] as const) {
    const view = v.placeView({ queries: 108, keys: 108, width, height }, { centre: null, zoom: null }, { query: 50, key: 1 });
    assert.deepEqual(v.getVisibleRange(view), { query: [0, 108], key: [0, 108] });
  }
});

test("the pins of an address are in view in every window, and its place is kept as far as they allow", () => {
  const pins = { query: 50, key: 1 };
  const isInside = (at: number, [from, to]: readonly [number, number]): boolean => from <= at && at < to;
  for (const [width, height] of [[1280, 420], [700, 560], [300, 300]] as const) {
    const plot = { queries: 108, keys: 108, width, height };
    for (const place of [{ centre: { query: 90, key: 100 }, zoom: 30 }, { centre: null, zoom: 30 }, { centre: { query: 5, key: 5 }, zoom: 64 }]) {
      const range = v.getVisibleRange(v.placeView(plot, place, pins));
      assert.ok(isInside(pins.query, range.query) && isInside(pins.key, range.key), JSON.stringify({ plot, place, range }));
    }
    const near = { centre: { query: 50.5, key: 2 }, zoom: 20 };
    assert.deepEqual(v.placeView(plot, near, pins), v.placeView(plot, near, null), "in view already");
  }
  const query = v.placeView({ queries: 500, keys: 500, ...size }, { centre: { query: 20, key: 400 }, zoom: 30 }, { query: 200, key: null });
  assert.ok(Math.abs(v.getCentre(query).key - 400) < 1e-9, "without a pinned key, the keys stay");
});

test("a centre without pins is where the address says", () => {
  const plot = { queries: 1000, keys: 1000, ...size };
  assert.deepEqual(v.getCentre(v.placeView(plot, { centre: { query: 400, key: 300.5 }, zoom: 10 }, null)), { query: 400, key: 300.5 });
  assert.deepEqual(v.getCentre(v.placeView(plot, { centre: null, zoom: 10 }, null)), { query: 500, key: 500 });
});
