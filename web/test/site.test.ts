import assert from "node:assert/strict";
import { test } from "node:test";

import type { StoredArray } from "../src/site/manifest";
import { ArrayReader, convertHalf } from "../src/site/array_reader";
import { checkManifest } from "../src/site/manifest";
import { RangeReader } from "../src/site/range_reader";
import { createCsv, createNpy } from "../src/site/weight_files";

const MEGABYTE = 1 << 20;

/** A reader of one file of zeros whose host answers as told. */
function createReader(bytes: number, answer: (range: string | null) => Response): RangeReader {
  return new RangeReader({ "a.bin": [bytes, "0123456789abcdef"] }, async (url, request) => {
    assert.equal(url, "a.bin?0123456789ab");
    return answer(new Headers(request.headers).get("range"));
  });
}

test("a range of a large archive is requested, and a whole file in its place is refused with words", async () => {
  const partial = createReader(MEGABYTE, (range) => {
    assert.equal(range, "bytes=10-13");
    return new Response(new Uint8Array([1, 2, 3, 4]), { status: 206, headers: { "content-range": `bytes 10-13/${MEGABYTE}` } });
  });
  assert.deepEqual([...new Uint8Array(await partial.read("a.bin", [10, 4]))], [1, 2, 3, 4]);
  await assert.rejects(createReader(MEGABYTE, () => new Response(new Uint8Array(MEGABYTE))).read("a.bin", [10, 4]), /ignores range requests/);
});

test("a small file may come as a whole", async () => {
  const reader = createReader(20, () => new Response(Uint8Array.from({ length: 20 }, (_, at) => at)));
  assert.deepEqual([...new Uint8Array(await reader.read("a.bin", [3, 2]))], [3, 4]);
});

test("a file of another size, a missing file and a file outside the manifest are named", async () => {
  const other = createReader(MEGABYTE, () => new Response(new Uint8Array(4), { status: 206, headers: { "content-range": "bytes 10-13/99" } }));
  await assert.rejects(other.read("a.bin", [10, 4]), /not the file that the manifest describes/);
  const short = createReader(MEGABYTE, () => new Response(new Uint8Array(3), { status: 206 }));
  await assert.rejects(short.read("a.bin", [10, 4]), /not the file that the manifest describes/);
  await assert.rejects(createReader(MEGABYTE, () => new Response(null, { status: 416 })).read("a.bin", [10, 4]), /not the file/);
  await assert.rejects(createReader(MEGABYTE, () => new Response(null, { status: 404 })).read("a.bin", [10, 4]), /answered 404 for a.bin/);
  await assert.rejects(createReader(MEGABYTE, () => new Response()).read("b.bin", [0, 1]), /does not list b.bin/);
});

test("rows are read in blocks, neighbours together and each once", async () => {
  const requests: (readonly [number, number])[] = [];
  const reader = new ArrayReader({
    read: async (_file, [offset, length]) => {
      requests.push([offset, length]);
      return Float32Array.from({ length: length / 4 }, (_, at) => (offset - 100) / 4 + at).buffer;
    },
  });
  const array: StoredArray = { offset: 100, dtype: "f32", rows: 1000, width: 2 };
  assert.deepEqual([...(await reader.readFloats("a.bin", array, 255, 258))], [510, 511, 512, 513, 514, 515]);
  assert.deepEqual(requests, [[100, 4096]]);
  assert.equal((await reader.readFloats("a.bin", array, 0, 1000)).at(-1), 1999);
  assert.deepEqual(requests.slice(1), [[4196, 3904]]);
  assert.deepEqual([...(await reader.readFloats("a.bin", array, 999, 1000))], [1998, 1999]);
  assert.equal(requests.length, 2);
});

test("halves are numbers", () => {
  assert.deepEqual([0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000, 0x7c00].map(convertHalf), [1, -2, 2 ** -24, 65504, -0, Infinity]);
  assert.ok(Number.isNaN(convertHalf(0x7e00)));
});

test("only a manifest of this format is read", () => {
  assert.throws(() => checkManifest(null), /does not describe a site/);
  assert.throws(() => checkManifest({ format: "attnscope site", version: 2 }), /has format 2/);
});

test("weights become files", () => {
  const weights = new Float32Array([1, NaN]);
  assert.equal(new TextDecoder().decode(createCsv(weights, [0, 1], [0, 2], ["a"], ["a", ","])), ',0 a,"1 ,"\r\n0 a,1,\r\n');
  const file = new Uint8Array(createNpy(weights, 1, 2));
  assert.equal(file.length, 128 + 8);
  assert.match(String.fromCharCode(...file.subarray(10, 128)), /^\{'descr': '<f4', 'fortran_order': False, 'shape': \(1, 2\), \} +\n$/);
});
