import assert from "node:assert/strict";
import { test } from "node:test";

import { createStore, DEFAULT_STATE, type State } from "../src/state";
import { recordHistory } from "../src/undo";

function start(): { store: ReturnType<typeof createStore>; history: ReturnType<typeof recordHistory>; set(change: Partial<State>, after?: number): void } {
  let time = 0;
  const store = createStore(DEFAULT_STATE);
  const history = recordHistory(store, () => time);
  const set = (change: Partial<State>, after = 1000): void => {
    time += after;
    store.set(change);
  };
  return { store, history, set };
}

test("undo and redo go through changes, and a new change ends the redo", () => {
  const { store, history, set } = start();
  set({ channel: "max" });
  set({ pinQuery: 5 });
  assert.ok(history.undo());
  assert.deepEqual([store.get().channel, store.get().pinQuery], ["max", null]);
  assert.ok(history.redo());
  assert.equal(store.get().pinQuery, 5);
  assert.ok(history.undo() && history.undo());
  assert.deepEqual(store.get(), DEFAULT_STATE);
  assert.ok(!history.undo());
  set({ hideSink: true });
  assert.ok(!history.redo());
});

test("a wheel is one step, two wheels with a pause between them are two", () => {
  const { store, history, set } = start();
  for (const zoom of [2, 3, 4]) set({ zoom }, 30);
  set({ zoom: 5 }, 1000);
  for (const zoom of [6, 7]) set({ zoom }, 30);
  history.undo();
  assert.equal(store.get().zoom, 4);
  history.undo();
  assert.equal(store.get().zoom, null);
});

test("a pin and the move that reveals it are one step; changes in quick succession are not", () => {
  const { store, history, set } = start();
  set({ pinQuery: 900 });
  set({ centre: { query: 900, key: 900 }, zoom: 3 }, 16);
  set({ layer: 1 }, 100);
  set({ layer: 2 }, 100);
  history.undo();
  assert.deepEqual([store.get().layer, store.get().pinQuery], [1, 900]);
  history.undo();
  history.undo();
  assert.deepEqual(store.get(), DEFAULT_STATE);
});

test("a correction belongs to the change before it", () => {
  const { store, history, set } = start();
  set({ layer: 99 });
  store.set({ layer: 7 }, "replace");
  history.undo();
  assert.equal(store.get().layer, 0);
});
