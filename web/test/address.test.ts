import assert from "node:assert/strict";
import { afterEach, mock, test } from "node:test";

import { syncAddress, type AddressBar } from "../src/address";
import { createStore, DEFAULT_STATE, readAddress, writeAddress } from "../src/state";

const TRACE = "0123456789abcdef";

/** A window's history, as far as this needs it. */
class History implements AddressBar {
  readonly entries = [writeAddress({ ...DEFAULT_STATE, trace: TRACE })];
  calls = 0;
  private listener: (() => void) | undefined;

  readonly history = {
    replaceState: (_data: unknown, _unused: string, url?: string | URL | null): void => {
      this.calls += 1;
      this.entries[this.entries.length - 1] = String(url);
    },
    pushState: (_data: unknown, _unused: string, url?: string | URL | null): void => {
      this.calls += 1;
      this.entries.push(String(url));
    },
  };

  get location(): { hash: string } {
    return { hash: this.entries[this.entries.length - 1] ?? "" };
  }

  addEventListener(_type: "popstate", listener: () => void): void {
    this.listener = listener;
  }

  removeEventListener(): void {
    this.listener = undefined;
  }

  back(): void {
    this.entries.pop();
    this.listener?.();
  }
}

afterEach(() => mock.timers.reset());

function started(): { place: History; store: ReturnType<typeof createStore>; close: () => void } {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: 100_000 });
  const place = new History();
  const store = createStore(readAddress(place.location.hash));
  const address = syncAddress(store, place, () => Date.now());
  return { place, store, close: () => address.close() };
}

test("a long drag writes the address at most twice a second, and the last place is written", () => {
  const { place, store, close } = started();
  for (let step = 1; step <= 600; step++) {
    store.set({ centre: { query: step, key: step }, zoom: 1 });
    mock.timers.tick(16);
  }
  mock.timers.tick(1000);
  assert.ok(place.calls <= 2 * 9.6 + 2, `${place.calls} calls in 9.6 seconds`);
  assert.deepEqual(readAddress(place.location.hash).centre, { query: 600, key: 600 });
  assert.equal(place.entries.length, 2, "one entry, however long: Back stays in the explorer");
  place.back();
  assert.equal(store.get().centre, null);
  close();
});

test("each change of how the map is shown is an entry, a correction is not", () => {
  const { place, store, close } = started();
  for (const change of [{ channel: "max" }, { hideSink: true }, { range: [-8, 0] }] as const) {
    mock.timers.tick(1000);
    store.set(change);
  }
  mock.timers.tick(1000);
  store.set({ layer: 1 }, "replace");
  mock.timers.tick(1000);
  assert.equal(place.entries.length, 4);
  place.back();
  assert.deepEqual([store.get().range, store.get().hideSink], [null, true]);
  close();
});

test("moves before and after another change are two entries", () => {
  const { place, store, close } = started();
  for (const change of [{ zoom: 2 }, { zoom: 3 }, { channel: "max" }, { zoom: 4 }, { zoom: 5 }] as const) {
    mock.timers.tick(1000);
    store.set(change);
  }
  mock.timers.tick(1000);
  assert.deepEqual(place.entries.map((entry) => readAddress(entry).zoom), [null, 3, 3, 5]);
  close();
});

test("Back goes to the head before", () => {
  const { place, store, close } = started();
  mock.timers.tick(1000);
  store.set({ layer: 2 }, "push");
  mock.timers.tick(1000);
  store.set({ layer: 3 }, "push");
  assert.equal(place.entries.length, 3);
  place.back();
  assert.equal(store.get().layer, 2);
  place.back();
  assert.equal(store.get().layer, 0);
  mock.timers.tick(1000);
  assert.equal(place.entries.length, 1, "going back leaves no new entry");
  close();
});

test("Back returns to the last place, not to the first", () => {
  const { place, store, close } = started();
  mock.timers.tick(1000);
  store.set({ centre: { query: 5, key: 6 }, zoom: 2 });
  store.set({ layer: 2, centre: { query: 50, key: 60 } }, "push");
  place.back();
  assert.deepEqual(store.get().centre, { query: 5, key: 6 });
  close();
});

test("a held key adds one history entry, not hundreds", () => {
  const { place, store, close } = started();
  mock.timers.tick(1000);
  for (let query = 1; query <= 300; query++) {
    store.set({ pinQuery: query }, "push");
    mock.timers.tick(33);
  }
  mock.timers.tick(1000);
  assert.ok(place.calls < 50, `${place.calls} calls`);
  assert.equal(place.entries.length, 2);
  assert.equal(readAddress(place.location.hash).pinQuery, 300);
  close();
});
