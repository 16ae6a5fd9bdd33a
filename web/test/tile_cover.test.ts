import assert from "node:assert/strict";
import { test } from "node:test";
import { readTile } from "../src/server/tile_codec";
import { coverView, getChannels, listTileRequests } from "../src/tiles/tile_cover";
import { ZoomPlan, type TileAddress } from "../src/geometry/zoom_plan";
import type { TileResult } from "../src/tiles/tile_store";
import { plainTile } from "./tile_bodies";

const plan = new ZoomPlan(1024, 1024);
const all = { query: [0, 1024], key: [0, 1024] } as const;
const free = { causal: false, offset: 0, window: null };
const causal = { causal: true, offset: 0, window: null };
const held = (...names: string[]) => (address: TileAddress): TileResult | undefined =>
  names.includes(`${address.z}/${address.y}/${address.x}`) ? { ...readTile(plainTile(9)), hasMasked: false } : undefined;

test("without tiles everything is missing", () => {
  assert.deepEqual(coverView(plan, 2, all, free, () => undefined).map((placement) => placement.state), new Array(16).fill("missing"));
});

test("the coarsest tile replaces every missing tile", () => {
  const placements = coverView(plan, 2, all, free, held("0/0/0", "2/1/1"));
  assert.equal(placements.filter((placement) => placement.state === "placeholder").length, 15);
  assert.deepEqual(placements.filter((placement) => placement.state === "drawn").map((placement) => [placement.query, placement.key]), [[256, 256]]);
  assert.ok(placements.every((placement) => placement.tile));
});

test("the nearest ancestor is taken", () => {
  const placement = coverView(plan, 2, { query: [0, 1], key: [300, 301] }, free, held("0/0/0", "1/0/0"))[0];
  assert.deepEqual([placement?.address, placement?.stride], [{ z: 1, y: 0, x: 0 }, 2]);
  assert.deepEqual([placement?.key, placement?.keyEnd], [256, 512]);
});

test("after zooming out the finer tiles are still drawn", () => {
  const placements = coverView(plan, 1, all, free, held("0/0/0", "2/0/0", "2/0/1"));
  const finer = placements.filter((placement) => placement.address.z === 2);
  assert.deepEqual(finer.map((placement) => [placement.state, placement.key]), [["placeholder", 0], ["placeholder", 256]]);
});

test("tiles above the diagonal are masked and never requested", () => {
  const placements = coverView(plan, 2, all, causal, () => undefined);
  assert.equal(placements.filter((placement) => placement.state === "masked").length, 6);
  const wanted = listTileRequests(plan, 2, all, causal, "mean");
  assert.ok(wanted.every((tile) => tile.z === 0 || tile.x <= tile.y));
  assert.equal(wanted.length, 11);
});

test("the diagonal of a matrix with more keys than queries is shifted", () => {
  const wide = new ZoomPlan(256, 1024);
  const view = { query: [0, 256], key: [0, 1024] } as const;
  assert.equal(listTileRequests(wide, 2, view, { causal: true, offset: 768, window: null }, "mean").filter((tile) => tile.z === 2).length, 4);
  assert.equal(listTileRequests(wide, 2, view, { causal: true, offset: 0, window: null }, "mean").filter((tile) => tile.z === 2).length, 1);
});

test("empty tiles are masked, also below an empty ancestor", () => {
  assert.deepEqual(coverView(plan, 0, all, free, () => "empty").map((placement) => placement.state), ["masked"]);
  const states = coverView(plan, 1, all, free, (address) => (address.z === 0 ? "empty" : undefined)).map((placement) => placement.state);
  assert.deepEqual(states, new Array(4).fill("masked"));
});

test("a failed tile is marked, unless another tile can replace it", () => {
  assert.equal(coverView(plan, 0, all, free, () => "failed")[0]?.state, "failed");
  const lookup = (address: TileAddress): TileResult | undefined => (address.z === 2 ? "failed" : held("0/0/0")(address));
  assert.ok(coverView(plan, 2, all, free, lookup).every((placement) => placement.state === "placeholder"));
});

test("the coarsest tile is requested first, then from the centre outwards, the ring when idle", () => {
  const wanted = listTileRequests(plan, 2, { query: [256, 512], key: [256, 512] }, free, "mean");
  assert.deepEqual(wanted[0], { z: 0, y: 0, x: 0, channel: "mean" });
  assert.deepEqual(wanted[1], { z: 2, y: 1, x: 1, channel: "mean" });
  assert.equal(wanted.filter((tile) => tile.idle).length, 8);
});

test("two channels are requested only where they differ and are shown", () => {
  assert.deepEqual([getChannels(1, "both"), getChannels(1, "max"), getChannels(4, "both"), getChannels(4, "max"), getChannels(4, "mean")], [["mean"], ["mean"], ["mean", "max"], ["max"], ["mean"]]);
  const wanted = listTileRequests(plan, 0, all, free, "both");
  assert.deepEqual(wanted.map((tile) => tile.channel), ["mean", "max"]);
});

test("placements of a ragged matrix end with whole bins", () => {
  const ragged = new ZoomPlan(1021, 1021);
  const tile = { ...readTile(plainTile(9)), hasMasked: false, rows: 256, columns: 256 };
  const placement = coverView(ragged, 0, { query: [0, 1021], key: [0, 1021] }, free, () => tile)[0];
  assert.deepEqual([placement?.queryEnd, placement?.keyEnd], [1024, 1024]);
});
