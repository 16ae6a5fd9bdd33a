import assert from "node:assert/strict";
import { test } from "node:test";
import { countVisibleKeys } from "../src/server/protocol";

test("a query sees the keys that its mask leaves", () => {
  const full = { causal: false, offset: 0, window: null, keys: 10 };
  assert.equal(countVisibleKeys(full, 3), 10);
  assert.equal(countVisibleKeys({ ...full, causal: true }, 3), 4);
  assert.equal(countVisibleKeys({ ...full, causal: true, offset: 2 }, 3), 6);
  const sliding = { ...full, causal: true, window: 5 };
  assert.deepEqual([0, 3, 4, 5, 9].map((query) => countVisibleKeys(sliding, query)), [1, 4, 5, 5, 5]);
});
