// What exported files are called and say of themselves; and a saved page that answers from what it brought along.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createCaption, createFileName } from "../src/export/captions";
import { createFileTransport } from "../src/server/file_transport";
import { DenseHead } from "../src/server/dense_head";
import type { Meta } from "../src/server/protocol";
import { ResponseError } from "../src/server/transport";

const meta = (model: string, name = "a text", note: string | null = null): Meta => ({ trace: "", name, model, note, unmasked: null, origin: null, images: [], layers: [] });
const part = { query: [0, 12], key: [1000, 1300] } as const;

test("a file is named by model, head and range, in characters that every file system allows", () => {
  assert.equal(createFileName(meta("SmolLM2-135M"), "L3H5", part, "png"), "SmolLM2-135M_L3H5_q0-11_k1000-1299.png");
  for (const hostile of ["../../etc/passwd", "..", "a\u202egnp.exe", "C:\\con", "\u0000\n", "", "x".repeat(500), "🙂🙂"]) {
    const name = createFileName(meta(hostile, hostile), "L0H0", part, "svg");
    assert.match(name, /^[\p{L}\p{N}][\p{L}\p{N}._-]{0,60}_L0H0_q0-11_k1000-1299\.svg$/u);
  }
});

test("a caption has model, text, heads, meaning of colours and range", () => {
  const painted = { stride: 4, channel: "max", scale: { colours: "magma", range: [-20, 0], kind: "log" } } as const;
  const plain = (text: string): string => text.replace(/[\u2068\u2069]/g, "");
  const about = { meta: meta("M", "N"), text: "", heads: ["L0H1"], part, painted, version: "1.2" };
  assert.equal(
    plain(createCaption(about)),
    "M · N · L0H1 · weight, max of 4×4 pairs, log2, -20 to 0 bits · queries 0 to 11, keys 1,000 to 1,299 · AttnScope 1.2",
  );
  assert.match(plain(createCaption({ ...about, text: " When Mary and John\nwent" })), /^N · “When Mary and John↵?.?went” · L0H1 · /);
  const ratio = { ...painted, stride: 1, scale: { ...painted.scale, colours: "ratio", range: [-6, 6] } } as const;
  assert.match(plain(createCaption({ ...about, heads: ["L0H1", "L2H3"], painted: ratio })), /L0H1 and L2H3 · log2 of L0H1 \/ L2H3, each pair, -6 to 6 bits/);
  const linear = { ...painted, scale: { ...painted.scale, kind: "linear", range: [-20, -1] } } as const;
  assert.match(createCaption({ ...about, painted: linear, meta: meta("M", "M", "not computed") }), /linear, 0 to 0\.5 .*not computed/);
});

const packed = async (text: string): Promise<string> => {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(stream).arrayBuffer())));
};

test("a saved page returns its stored responses, finds text, and rejects the rest", async () => {
  const body = '["The"," cat"," the"," cat"]"meta"';
  const index = { "t/0/text?side=query&from=0&to=4": [0, 0, 28], "t/meta": [0, 28, 6], "t/0/0/1/0/1?ch=mean": null };
  const file = createFileTransport(JSON.stringify({ index: await packed(JSON.stringify(index)), parts: [await packed(body)] }));
  assert.equal(await file.json("t/meta"), "meta");
  assert.equal(await file.bytes("t/0/0/1/0/1?ch=mean"), null);
  assert.deepEqual([file.hasResponse?.("t/meta"), file.hasResponse?.("t/other")], [true, false]);
  const find = (text: string, after: number, backward = 0): Promise<unknown> => file.json(`t/0/find?side=query&text=${text}&after=${after}&backward=${backward}`);
  assert.deepEqual(await find("CAT", 2), { position: 3, count: 2, index: 1 });
  assert.deepEqual(await find("cat", 2, 1), { position: 1, count: 2, index: 0 });
  assert.deepEqual(await find("cat%20the", 0), { position: 1, count: 1, index: 0 });
  assert.deepEqual(await find("dog", 0), { position: null, count: 0, index: -1 });
  assert.deepEqual(await file.json("t/0/tokens?side=query&from=1&to=3"), [" cat", " the"]);
  await assert.rejects(file.json("t/1/tokens?side=query&from=1&to=3"), /does not hold that/);
  await assert.rejects(file.json("t/1/meta"), /does not hold that/);
  await assert.rejects(file.post("run", {}), ResponseError);
  const given = new AbortController();
  given.abort();
  await assert.rejects(file.json("t/meta", given.signal), /abort/i);
});

test("the attention of a word is the mean over its queries and the sum over its keys", () => {
  const body = new ArrayBuffer(32 + 4 * 9);
  const header = new DataView(body);
  [0x534c5431].forEach((mark) => header.setUint32(0, mark, false));
  header.setUint8(4, 2);
  [3, 3].forEach((side, at) => header.setUint16(8 + 2 * at, side, true));
  new Float32Array(body, 32).set([1, NaN, NaN, 0.25, 0.75, NaN, 0.5, 0.25, 0.25]);
  const head = new DenseHead(body);
  assert.deepEqual(head.createLinks("query", 2, [0, 1], [0, 1], 9), { span: [1, 3], total: 1, count: 2, links: [[1, 3, 0.625], [0, 1, 0.375]] });
  assert.deepEqual(head.createLinks("key", 0, [0, 1], [0, 1], 9), { span: [0, 1], total: 1.375, count: 2, links: [[0, 1, 1], [1, 3, 0.375]] });
  assert.deepEqual(head.createLinks("key", 2, null, null, 9), { span: [2, 3], total: 0.25, count: 1, links: [[2, 3, 0.25]] });
});
