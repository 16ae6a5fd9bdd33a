import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeWeight, encodeWeight, readTile } from "../src/server/tile_codec";
import { createLookup, getEntry, getTable, TOO_SMALL_GREY, type ColourScale } from "../src/paint/colour";
import { PairTiles } from "../src/tiles/pair_tiles";
import type { TileAddress } from "../src/geometry/zoom_plan";
import { computeRatio, decodeRatio, encodeRatio } from "../src/tiles/ratio_codec";
import type { LoadedTile, TileRequest, TileResult, TileSource } from "../src/tiles/tile_store";
import { createBody } from "./tile_bodies";

const nameOf = ({ z, y, x }: TileAddress): string => `${z}/${y}/${x}`;

class Shelf implements TileSource {
  readonly held = new Map<string, TileResult>();
  wanted: string[] = [];
  get(address: TileAddress): TileResult | undefined {
    return this.held.get(nameOf(address));
  }
  request(list: readonly TileRequest[]): void {
    this.wanted = list.map((wanted) => `${nameOf(wanted)} ${wanted.channel}`);
  }
  isUnavailable(): boolean {
    return false;
  }
  put(name: string, rows: number, columns: number, code: (row: number, column: number) => number, flags = 0): LoadedTile {
    const codes = Array.from({ length: rows * columns }, (_, index) => code(Math.floor(index / columns), index % columns));
    const tile = { ...readTile(createBody({ rows, columns, codes, flags, log2min: -9, log2max: -1 })), hasMasked: codes.includes(0) };
    this.held.set(name, tile);
    return tile;
  }
}

const codes = (held: TileResult | undefined): number[] => (typeof held === "object" ? [...held.codes] : assert.fail(`${held}`));

test("a split picture has A below the diagonal and B transposed above it", () => {
  const [one, other] = [new Shelf(), new Shelf()];
  const split = new PairTiles([one, other], true);
  const below = one.put("1/1/0", 2, 3, (row, column) => 10 * row + column + 1);
  other.put("1/1/0", 2, 3, (row, column) => 10 * row + column + 101);
  assert.equal(split.get({ z: 1, y: 1, x: 0 }, "mean"), below);
  const above = split.get({ z: 1, y: 0, x: 1 }, "mean");
  assert.deepEqual(codes(above), [101, 111, 102, 112, 103, 113]);
  assert.ok(typeof above === "object" && above.rows === 3 && above.columns === 2);
});

test("a tile on the diagonal of a split takes the diagonal from A", () => {
  const [one, other] = [new Shelf(), new Shelf()];
  const split = new PairTiles([one, other], true);
  const causal = (shift: number) => (row: number, column: number) => (column > row ? 0 : shift + 10 * row + column);
  one.put("0/0/0", 3, 3, causal(1));
  assert.equal(split.get({ z: 0, y: 0, x: 0 }, "mean"), undefined);
  other.put("0/0/0", 3, 3, causal(101));
  const both = split.get({ z: 0, y: 0, x: 0 }, "mean");
  assert.deepEqual(codes(both), [1, 111, 121, 11, 12, 122, 21, 22, 23]);
  assert.ok(typeof both === "object" && !both.hasMasked);
});

test("a split picture requests each head's own half", () => {
  const [one, other] = [new Shelf(), new Shelf()];
  const tile = (y: number, x: number): TileRequest => ({ z: 2, y, x, channel: "max" });
  new PairTiles([one, other], true).request([tile(1, 1), tile(0, 3), tile(2, 1)]);
  assert.deepEqual([one.wanted, other.wanted], [["2/1/1 max", "2/2/1 max"], ["2/1/1 max", "2/3/0 max"]]);
});

test("a combined tile is created once, and again when a better tile is loaded", () => {
  const [one, other] = [new Shelf(), new Shelf()];
  const ratio = new PairTiles([one, other], false);
  const address = { z: 0, y: 0, x: 0 };
  one.put("0/0/0", 1, 1, () => 200);
  other.put("0/0/0", 1, 1, () => 190, 2);
  const first = ratio.get(address, "mean");
  assert.ok(typeof first === "object" && first.partial);
  assert.equal(ratio.get(address, "mean"), first);
  other.put("0/0/0", 1, 1, () => 180);
  const second = ratio.get(address, "mean");
  assert.ok(typeof second === "object" && !second.partial);
  assert.deepEqual([codes(first), codes(second)], [[138], [148]]);
});

test("a ratio is masked where one of the two is, and failed where one is", () => {
  const [one, other] = [new Shelf(), new Shelf()];
  const ratio = new PairTiles([one, other], false);
  const at = (): TileResult | undefined => ratio.get({ z: 0, y: 0, x: 0 }, "mean");
  one.put("0/0/0", 1, 1, () => 200);
  assert.equal(at(), undefined);
  other.held.set("0/0/0", "empty");
  assert.equal(at(), "empty");
  other.held.set("0/0/0", "failed");
  assert.equal(at(), "failed");
});

test("a ratio of codes is within 0.126 bits of the ratio of the weights", () => {
  let worst = 0;
  for (let bits = -19.9; bits <= 0; bits += 0.37) {
    for (let other = Math.max(-31.9, bits - 15); other <= 0; other += 0.29) {
      const exact = Math.max(-15.8, Math.min(15.8, bits - other));
      worst = Math.max(worst, Math.abs(Math.log2(decodeRatio(encodeRatio(encodeWeight(2 ** bits), encodeWeight(2 ** other)))) - exact));
    }
  }
  assert.ok(worst <= 32 / 254 + 1e-9, String(worst));
  assert.ok(worst > 0.1);
});

test("two weights below a millionth have no ratio, one of them has", () => {
  assert.equal(encodeRatio(encodeWeight(2 ** -21), encodeWeight(2 ** -30)), 1);
  assert.ok(Number.isNaN(decodeRatio(1)));
  assert.ok(Number.isNaN(computeRatio(2 ** -21, 0) ?? 0));
  assert.equal(decodeRatio(encodeRatio(encodeWeight(2 ** -4), encodeWeight(2 ** -4))), 1);
  // A zero is a code too, and lies past every range that can be chosen.
  assert.ok(decodeRatio(encodeRatio(encodeWeight(2 ** -20), encodeWeight(0))) > 2 ** 10);
  assert.ok(decodeRatio(encodeRatio(encodeWeight(0), encodeWeight(2 ** -20))) < 2 ** -10);
  assert.deepEqual([encodeRatio(0, 9), encodeRatio(9, 0), computeRatio(null, 0.5), computeRatio(0.5, 0.25)], [0, 0, null, 2]);
  assert.equal(computeRatio(decodeWeight(255), 0), Infinity);
});

const scale: ColourScale = { colours: "ratio", range: [-6, 6], kind: "log" };

test("ratios have 256 colours of their own, darker the further from equal, and white where equal", () => {
  const table = getTable("ratio");
  const entry = (at: number): number[] => [...table.slice(at * 3, at * 3 + 3)];
  assert.equal(new Set(Array.from({ length: 256 }, (_, at) => entry(at).join())).size, 256);
  assert.deepEqual(entry(getEntry(1, scale)), [247, 247, 247]);
  const light = (at: number): number => entry(at).reduce((sum, part, channel) => sum + part * ([0.2126, 0.7152, 0.0722][channel] ?? 0), 0);
  for (let at = 1; at <= 128; at++) assert.ok(light(at) > light(at - 1) && light(Math.min(255, 127 + at)) >= light(Math.min(255, 128 + at)));
  const [blue, orange] = [entry(0), entry(255)];
  assert.ok((blue[2] ?? 0) > (blue[0] ?? 0) && (orange[0] ?? 0) > (orange[2] ?? 0));
  assert.ok(!Array.from({ length: 256 }, (_, at) => entry(at).join()).includes(TOO_SMALL_GREY.join()));
});

test("every step of a ratio inside the range has its own colour; masked is transparent, too small is grey", () => {
  const pixels = createLookup(scale);
  const inside = Array.from({ length: 256 }, (_, code) => code).filter((code) => Math.abs(Math.log2(decodeRatio(code))) < 6);
  assert.equal(new Set(inside.map((code) => pixels[code])).size, inside.length);
  const bytes = [...new Uint8Array(pixels.buffer, 0, 8)];
  assert.deepEqual(bytes, [0, 0, 0, 0, ...TOO_SMALL_GREY, 255]);
});
