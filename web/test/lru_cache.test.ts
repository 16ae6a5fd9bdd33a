import assert from "node:assert/strict";
import { test } from "node:test";
import { LruCache } from "../src/lru_cache";

test("the least recently used entry is dropped first", () => {
  const cache = new LruCache<string, number | null>(2);
  cache.set("a", 1);
  cache.set("b", null);
  assert.equal(cache.get("a"), 1);
  cache.set("c", 3);
  assert.deepEqual(["a", "b", "c"].map((key) => cache.get(key)), [1, undefined, 3]);
  cache.set("a", 4);
  cache.set("d", 5);
  assert.deepEqual(["a", "c", "d"].map((key) => cache.get(key)), [4, undefined, 5]);
  cache.delete("a");
  assert.equal(cache.get("a"), undefined);
});

test("null is a value", () => {
  const cache = new LruCache<string, null>(1);
  cache.set("a", null);
  assert.equal(cache.get("a"), null);
  cache.clear();
  assert.equal(cache.get("a"), undefined);
});
