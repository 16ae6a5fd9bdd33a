import assert from "node:assert/strict";
import { test } from "node:test";
import { TileStore, type TileRequest, type TileStoreSettings } from "../src/tiles/tile_store";
import type { Transport } from "../src/server/transport";
import { plainTile } from "./tile_bodies";

interface Asked {
  path: string;
  signal: AbortSignal;
  answer(body: ArrayBuffer | null): void;
  fail(): void;
}

class Server implements Transport {
  requested: Asked[] = [];
  json<T>(): Promise<T> {
    throw new Error("not here");
  }
  post<T>(): Promise<T> {
    throw new Error("not here");
  }
  stream<T>(): AsyncIterable<T> {
    throw new Error("not here");
  }
  bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    return new Promise((resolve, reject) => {
      if (!signal) throw new Error("a tile must be stoppable");
      signal.addEventListener("abort", () => reject(Object.assign(new Error("aborted"), { name: "AbortError" })));
      this.requested.push({ path, signal, answer: resolve, fail: () => reject(new Error("no")) });
    });
  }
  get paths(): string[] {
    return this.requested.map((one) => one.path.replace("aa/0/1/", "").replace("?ch=mean", ""));
  }
}

const wait = (milliseconds = 0): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds));
const tile = (z: number, y: number, x: number, idle = false): TileRequest => ({ z, y, x, channel: "mean", ...(idle ? { idle } : {}) });
const quick: Partial<TileStoreSettings> = { restMilliseconds: 20, longestWaitMilliseconds: 50, partialRetryMilliseconds: 30, retryMilliseconds: 10, maxTries: 3 };

function started(settings: Partial<TileStoreSettings> = {}): { server: Server; store: TileStore; changes: () => number } {
  const server = new Server();
  let changes = 0;
  const store = new TileStore(server, () => changes++, { ...quick, ...settings });
  store.setHead({ trace: "aa", layer: 0, head: 1 });
  return { server, store, changes: () => changes };
}

test("a tile is requested once and then cached", async () => {
  const { server, store, changes } = started();
  store.request([tile(0, 0, 0)], true);
  assert.deepEqual(server.paths, ["0/0/0"]);
  assert.equal(store.get(tile(0, 0, 0), "mean"), undefined);
  server.requested[0]?.answer(plainTile(7));
  await wait();
  const held = store.get(tile(0, 0, 0), "mean");
  assert.ok(typeof held === "object" && held.codes[0] === 7 && !held.hasMasked);
  assert.equal(changes(), 1);
  store.request([tile(0, 0, 0)], true);
  assert.equal(server.requested.length, 1);
});

test("at most six requests run, in order", async () => {
  const { server, store } = started();
  store.request(Array.from({ length: 9 }, (_, x) => tile(4, 0, x)), true);
  assert.deepEqual(server.paths, ["4/0/0", "4/0/1", "4/0/2", "4/0/3", "4/0/4", "4/0/5"]);
  server.requested[3]?.answer(plainTile(1));
  await wait();
  assert.equal(server.paths[6], "4/0/6");
  assert.equal(store.inFlight, 6);
});

test("requests that leave the view are cancelled and can be sent again", async () => {
  const { server, store } = started();
  store.request([tile(4, 0, 0), tile(4, 0, 1)], true);
  store.request([tile(4, 0, 1)], true);
  assert.deepEqual(server.requested.map((one) => one.signal.aborted), [true, false]);
  await wait();
  store.request([tile(4, 0, 0), tile(4, 0, 1)], true);
  assert.deepEqual(server.paths, ["4/0/0", "4/0/1", "4/0/0"]);
});

test("requests wait until the view rests, up to a limit", async () => {
  const { server, store } = started();
  for (let x = 0; x < 12; x++) {
    store.request([tile(5, 0, x)]);
    if (x === 0) assert.equal(server.requested.length, 0);
    await wait(8);
  }
  assert.ok(server.requested.length >= 1, "requested while moving on");
  assert.ok(server.requested.length < 6, "not requested at every step");
  await wait(40);
  assert.equal(server.paths[server.paths.length - 1], "5/0/11");
});

test("held requests are sent when they are released, or after the time that was given", async () => {
  const { server, store } = started();
  store.hold(1000);
  store.request([tile(0, 0, 0)], true);
  assert.deepEqual(server.paths, []);
  store.release();
  assert.deepEqual(server.paths, ["0/0/0"]);
  store.hold(20);
  store.request([tile(1, 0, 0)], true);
  assert.deepEqual(server.paths, ["0/0/0"]);
  await wait(60);
  assert.deepEqual(server.paths, ["0/0/0", "1/0/0"]);
});

test("an empty tile is cached", async () => {
  const { server, store } = started();
  store.request([tile(2, 0, 0)], true);
  server.requested[0]?.answer(null);
  await wait();
  assert.equal(store.get(tile(2, 0, 0), "mean"), "empty");
  store.request([tile(2, 0, 0)], true);
  await wait(40);
  assert.equal(server.requested.length, 1);
});

test("a partial tile is shown and requested again until it is complete", async () => {
  const { server, store } = started();
  store.request([tile(0, 0, 0)], true);
  server.requested[0]?.answer(plainTile(3, 256, 2));
  await wait();
  const held = store.get(tile(0, 0, 0), "mean");
  assert.ok(typeof held === "object" && held.partial);
  await wait(60);
  assert.equal(server.requested.length, 2);
  assert.equal(store.get(tile(0, 0, 0), "mean"), held, "the preview stays while the next is on its way");
  server.requested[1]?.answer(plainTile(4));
  await wait(60);
  assert.equal(server.requested.length, 2);
});

test("partial tiles are requested again when building ends", async () => {
  const { server, store } = started({ partialRetryMilliseconds: 1e6 });
  store.request([tile(0, 0, 0)], true);
  server.requested[0]?.answer(plainTile(3, 256, 2));
  await wait();
  store.refreshPartial();
  assert.equal(server.requested.length, 2);
});

test("a failure is retried, later each time, and then only with another head", async () => {
  const { server, store } = started();
  store.request([tile(0, 0, 0)], true);
  for (let time = 0; time < 3; time++) {
    await wait(60);
    assert.equal(server.requested.length, time + 1);
    server.requested[time]?.fail();
    await wait();
    assert.equal(store.get(tile(0, 0, 0), "mean"), "failed");
  }
  await wait(120);
  assert.equal(server.requested.length, 3);
  store.setHead({ trace: "aa", layer: 0, head: 1 });
  store.request([tile(0, 0, 0)], true);
  assert.equal(server.requested.length, 4);
});

test("an invalid body counts as a failure", async () => {
  const { server, store } = started({ maxTries: 1 });
  store.request([tile(0, 0, 0)], true);
  server.requested[0]?.answer(new ArrayBuffer(5));
  await wait();
  assert.equal(store.get(tile(0, 0, 0), "mean"), "failed");
});

test("bytes stay under the limit, and the least recently used go first", async () => {
  const { server, store } = started({ maxBytes: 3 * 65_568 });
  for (let x = 0; x < 4; x++) {
    store.request([tile(4, 0, x)], true);
    server.requested[x]?.answer(plainTile(x + 1));
    await wait();
    store.get(tile(4, 0, 0), "mean");
  }
  assert.ok(store.bytes <= 3 * 65_568);
  assert.equal(store.get(tile(4, 0, 1), "mean"), undefined);
  assert.ok(store.get(tile(4, 0, 0), "mean"));
  assert.ok(store.get(tile(4, 0, 3), "mean"));
});

test("the ring around the view is requested only when nothing else is left", async () => {
  const { server, store } = started();
  store.request([tile(4, 0, 0), tile(4, 0, 1, true), tile(4, 0, 2, true)], true);
  assert.deepEqual(server.paths, ["4/0/0"]);
  server.requested[0]?.answer(plainTile(1));
  await wait();
  assert.deepEqual(server.paths, ["4/0/0", "4/0/1", "4/0/2"]);
});

test("another head cancels the requests of this one and keeps its tiles", async () => {
  const { server, store } = started();
  store.request([tile(0, 0, 0), tile(1, 0, 0)], true);
  server.requested[0]?.answer(plainTile(1));
  await wait();
  store.setHead({ trace: "aa", layer: 0, head: 2 });
  assert.equal(server.requested[1]?.signal.aborted, true);
  assert.equal(store.get(tile(0, 0, 0), "mean"), undefined);
  store.setHead({ trace: "aa", layer: 0, head: 1 });
  assert.ok(store.get(tile(0, 0, 0), "mean"));
});

test("a closed store is empty and sends no requests", async () => {
  const { server, store } = started();
  store.request([tile(0, 0, 0)], true);
  store.close();
  assert.equal(server.requested[0]?.signal.aborted, true);
  store.request([tile(0, 0, 0)], true);
  assert.equal(server.requested.length, 1);
  assert.equal(store.bytes, 0);
});
