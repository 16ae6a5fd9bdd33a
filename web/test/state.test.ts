import assert from "node:assert/strict";
import { test } from "node:test";

import {
  CHANNELS,
  COLOURS,
  SCALES,
  DEFAULT_STATE,
  createStore,
  fitToTrace,
  readAddress,
  isSameState,
  clampRange,
  swapHeads,
  writeAddress,
  COMPARE_MODES,
  POLICIES,
  MAX_ABLATED,
  PICTURE_KINDS,
  QUESTIONS,
  namesHead,
  type State,
} from "../src/state";
import { findNextHead, listHeads } from "../src/head_order";

/** A small generator of its own, so that a failure names a seed that fails again. */
function randomOf(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function randomState(random: () => number): State {
  const whole = (below: number): number => Math.floor(random() * below);
  const perhaps = <T>(make: () => T): T | null => (random() < 0.4 ? null : make());
  const hex = (): string => whole(16).toString(16);
  const [pinQuery, pinKey] = [perhaps(() => whole(131_072)), perhaps(() => whole(131_072))];
  const end = (start: number | null): number | null => (start === null || random() < 0.5 ? null : start + 1 + whole(99));
  return {
    trace: random() < 0.1 ? "" : Array.from({ length: 16 + whole(49) }, hex).join(""),
    layer: whole(80),
    head: whole(64),
    view: (["map", "text", "heads", "picture", "sentence"] as const)[whole(5)] ?? "map",
    centre: perhaps(() => ({ query: random() * 131_072, key: random() * 131_072 })),
    zoom: perhaps(() => 64 * random() ** 6),
    textPlace: perhaps(() => ({ query: whole(131_072), key: whole(131_072) })),
    pinQuery,
    pinKey,
    pinQueryEnd: end(pinQuery),
    pinKeyEnd: end(pinKey),
    region: pinKey === null && random() < 0.5 ? "3-5,9-11" : "",
    note: pinQuery === null && pinKey === null ? "" : (["", "the earlier name: a&b=c#d?e", "ключ <b>% 🔑"][whole(3)] ?? ""),
    pictureKind: PICTURE_KINDS[whole(4)] ?? "query",
    question: QUESTIONS[whole(5)] ?? "auto",
    filter: ["", "entropy<1", "mean_distance>=12.5"][whole(3)] ?? "",
    channel: CHANNELS[whole(3)] ?? "both",
    range: perhaps(() => [-32 + random() * 30, -1 + random()] as const),
    colours: COLOURS[whole(4)] ?? "grey",
    scale: SCALES[whole(4)] ?? "auto",
    eviction: perhaps(() => ({ by: POLICIES[whole(6)] ?? "norm", keep: 1 + whole(100), context: perhaps(() => 1 + whole(131_072)) })),
    hideSink: random() < 0.5,
    unmasked: random() < 0.5,
    words: random() < 0.5,
    headsAs: (["grid", "table", "scatter"] as const)[whole(3)] ?? "grid",
    order: ["", "entropy", "-previous_token"][whole(3)] ?? "",
    axes: random() < 0.5 ? DEFAULT_STATE.axes : ["sink", `${"x".repeat(whole(39))}_y`],
    label: random() < 0.5 ? "" : "induction",
    ablated: Array.from({ length: whole(MAX_ABLATED + 1) }, (_, index) => [whole(1e7), index] as const),
    ablationMethod: random() < 0.5 ? "zero" : "mean",
    compare: perhaps(() => ({
      trace: random() < 0.5 ? "" : Array.from({ length: 16 }, hex).join(""),
      layer: whole(80),
      head: whole(64),
      mode: COMPARE_MODES[whole(3)] ?? "side",
    })),
    large: random() < 0.5,
    locked: random() < 0.5,
    bits: 1 + whole(37) / 4,
    others:
      random() < 0.5
        ? []
        : [
            ["norm", "lift"],
            [`ключ ${whole(9)}`, "a&b=c#d?e/f,%"],
          ],
  };
}

const HOSTILE = [
  "",
  "#",
  "#1",
  "#1/",
  "#2/0123456789abcdef/L1H1/map",
  "#1//L0H0/map?",
  "#1/../../etc/passwd/map",
  "#1/0123456789abcdef/L99999999H1/map",
  "#1/0123456789abcdef/L-1H1/map",
  "#1/0123456789ABCDEF/L1H1/map",
  "#1/0123456789abcdef/L1H1/<script>",
  "#1/0123456789abcdef/L1H1/map?c=NaN,1&z=Infinity&r=1e9,-1e9",
  "#1/0123456789abcdef/L1H1/map?c=-5,99999999999999&z=-3&r=5,5&pin=q,k&cm=__proto__&agg=constructor",
  "#1/0123456789abcdef/L1H1/map?%=1&%zz=2&%E0%A4%A=3&\ud800=4&x=\udc00",
  "#1/0123456789abcdef/L1H1/map?__proto__=1&constructor=2&toString=3",
  "#1/0123456789abcdef/L1H1/map?z=0x10&c=1,2,3&pin=k5,q5&pin=q1&z=3",
  "#1/0123456789abcdef/L1H1/map?a&b=&=c&&&",
  "#1/0123456789abcdef/L1H1/map?" + "y".repeat(100_000),
  "#1/0123456789abcdef/L1H1/map?" + Array.from({ length: 500 }, (_, i) => `u${i}=${i}`).join("&"),
  "#1/0123456789abcdef/L1H1/map?r=-0,0&z=0.0000001",
  "#1/0123456789abcdef/L1H1/map?z=63.99999999&c=0.005,0.004999",
  "#1/0123456789abcdef/L1H1/map?pin=q7&pin=k7",
  "#1/0123456789abcdef/L1H1/heads?as=list&sort=--entropy&xy=a,b,c&label=A&abl=L1H1,L1H1,,x,L2&how=twice&lock=no",
  "#1/0123456789abcdef/L1H1/heads?xy=<a>,b&sort=__proto__&label=<b>&bits=Infinity",
  "#1/0123456789abcdef/L1H1/heads?abl=" + Array.from({ length: 900 }, (_, i) => `L${i}H1`).join(","),
  "#1/0123456789abcdef/L1H1/heads?abl=" + Array.from({ length: 100 }, (_, i) => `L${i}H1`).join(","),
  "#1/0123456789abcdef/L1H1/map?cmp=0123456789abcdef:L2H2,side",
  "#1/0123456789abcdef/L1H1/map?cmp=L12345678H2,side",
  "#1/0123456789abcdef/L1H1/map?cmp=L2H2,beside",
  "#1/0123456789abcdef/L1H1/map?cmp=../x:L2H2,side",
  "javascript:alert(1)",
  "#1/0123456789abcdef/L1H1/map?x=<img src=x onerror=alert(1)>",
];

function isValid(state: State): void {
  assert.match(state.trace, /^([0-9a-f]{16,64})?$/);
  for (const index of [state.layer, state.head]) assert.ok(Number.isInteger(index) && index >= 0 && index < 1e7);
  assert.ok(["map", "text", "heads", "picture", "sentence"].includes(state.view));
  assert.ok(PICTURE_KINDS.includes(state.pictureKind) && (state.region === "" || state.pinKey === null));
  assert.ok(["grid", "table", "scatter"].includes(state.headsAs) && ["zero", "mean"].includes(state.ablationMethod));
  assert.match(state.order, /^(-?[a-z_]{1,40})?$/);
  assert.match(state.axes.join(), /^[a-z_]{1,40},[a-z_]{1,40}$/);
  assert.match(state.label, /^([a-z]{1,40})?$/);
  assert.ok(state.ablated.length <= MAX_ABLATED);
  assert.equal(new Set(state.ablated.map(String)).size, state.ablated.length);
  if (state.compare) assert.match(state.compare.trace, /^([0-9a-f]{16,64})?$/);
  for (const [layer, head] of [...state.ablated, [state.compare?.layer ?? 0, state.compare?.head ?? 0]])
    assert.ok(Number.isInteger(layer) && layer < 1e7 && Number.isInteger(head) && head < 1e7);
  if (state.centre) for (const at of [state.centre.query, state.centre.key]) assert.ok(at >= 0 && at < 1e7);
  if (state.zoom !== null) assert.ok(state.zoom >= 1e-6 && state.zoom <= 64);
  for (const pin of [state.pinQuery, state.pinKey])
    assert.ok(pin === null || (Number.isInteger(pin) && pin >= 0 && pin < 1e7));
  assert.ok(CHANNELS.includes(state.channel) && COLOURS.includes(state.colours));
  if (state.range) assert.ok(state.range[0] >= -32 && state.range[0] < state.range[1] && state.range[1] <= 0);
  assert.ok(state.others.length <= 16);
}

test("an address is stable: written, read and written again it is the same", () => {
  for (let seed = 1; seed <= 5000; seed++) {
    const address = writeAddress(randomState(randomOf(seed)));
    assert.equal(writeAddress(readAddress(address)), address, `seed ${seed}`);
  }
});

test("a state survives writing and reading, up to rounding", () => {
  for (let seed = 1; seed <= 2000; seed++) {
    const state = randomState(randomOf(seed));
    const read = readAddress(writeAddress(state));
    assert.equal(read.centre === null, state.centre === null);
    if (state.centre && read.centre) {
      assert.ok(Math.abs(read.centre.query - state.centre.query) <= 0.0051);
      assert.ok(Math.abs(read.centre.key - state.centre.key) <= 0.0051);
    }
    if (state.zoom !== null)
      assert.ok(Math.abs((read.zoom ?? 0) - Math.max(1e-6, state.zoom)) <= Math.max(1e-6, state.zoom) * 6e-4);
    assert.equal(read.range === null, state.range === null);
    if (state.range && read.range)
      state.range.forEach((bits, end) => assert.ok(Math.abs(bits - (read.range?.[end] ?? NaN)) <= 0.5));
    const alike = { ...read, centre: state.centre, zoom: state.zoom, range: state.range };
    assert.ok(isSameState(alike, state), `seed ${seed}`);
  }
});

test("any address gives a valid state", () => {
  for (const fragment of HOSTILE) {
    const state = readAddress(fragment);
    isValid(state);
    const address = writeAddress(state);
    assert.ok(isSameState(readAddress(address), state), fragment.slice(0, 80));
    assert.doesNotMatch(address, /[<>"'\s]/);
  }
});

test("an address with any one character changed is still read as a valid state", () => {
  const random = randomOf(7);
  const signs = "#/?&=,.-%LHqk019azAZ<>\u0000\ud800é";
  for (let round = 0; round < 5000; round++) {
    const address = writeAddress(randomState(random));
    const at = Math.floor(random() * address.length);
    const changed = address.slice(0, at) + (signs[Math.floor(random() * signs.length)] ?? "") + address.slice(at + 1);
    const state = readAddress(changed);
    isValid(state);
    assert.equal(writeAddress(readAddress(writeAddress(state))), writeAddress(state));
  }
});

test("defaults are left out of the address", () => {
  assert.equal(writeAddress({ ...DEFAULT_STATE, trace: "0123456789abcdef" }), "#1/0123456789abcdef/L0H0/map");
});

test("an address reads as the design writes it", () => {
  const state = readAddress(
    "#1/0123456789abcdef/L12H3/map?c=4096.5,812.25&z=7.3&pin=q512,k12&agg=max&r=-16,-2&cm=magma&norm=lift",
  );
  assert.deepEqual(
    [
      state.layer,
      state.head,
      state.centre,
      state.zoom,
      state.pinQuery,
      state.pinKey,
      state.channel,
      state.range,
      state.colours,
    ],
    [12, 3, { query: 4096.5, key: 812.25 }, 7.3, 512, 12, "max", [-16, -2], "magma"],
  );
  assert.deepEqual(state.others, [["norm", "lift"]]);
});

test("a range that was chosen stays chosen, even where it is what another text would have by itself", () => {
  for (const range of [
    [-20, 0],
    [-10, 0],
  ] as const)
    assert.deepEqual(readAddress(writeAddress({ ...DEFAULT_STATE, range })).range, range);
});

test("another version of the address gives the defaults", () => {
  assert.ok(isSameState(readAddress("#2/0123456789abcdef/L12H3/map?z=7"), DEFAULT_STATE));
});

test("a range is inside the codes, the right way round, and never empty", () => {
  assert.deepEqual(clampRange(-4, -12), [-12, -4]);
  assert.deepEqual(clampRange(-100, 100), [-32, 0]);
  assert.deepEqual(clampRange(0, 0), [-0.5, 0]);
  assert.deepEqual(clampRange(NaN, -3), [-32, 0]);
  assert.deepEqual(clampRange(-Infinity, -3), [-32, -3]);
});

test("layers, heads and pins that do not exist are reset", () => {
  const layers = [
    { heads: 2, queries: 10, keys: 12 },
    { heads: 4, queries: 10, keys: 12 },
  ];
  const state = fitToTrace(
    { ...DEFAULT_STATE, layer: 7, head: 9, pinQuery: 10, pinKey: 11, centre: { query: 99, key: 3 } },
    layers,
  );
  assert.deepEqual([state.layer, state.head, state.pinQuery, state.pinKey], [1, 3, null, 11]);
  assert.deepEqual(state.centre, { query: 10, key: 3 });
});

test("ablated and compared heads that do not exist are removed, but not heads of another trace", () => {
  const layers = [{ heads: 2, queries: 10, keys: 10 }];
  const there = { trace: "", layer: 0, head: 1, mode: "split" } as const;
  const state = { ...DEFAULT_STATE, ablated: [[0, 0], [0, 2], [1, 0]] as const, compare: there };
  assert.deepEqual(fitToTrace(state, layers).ablated, [[0, 0]]);
  assert.deepEqual(fitToTrace(state, layers).compare, there);
  assert.equal(fitToTrace({ ...state, compare: { ...there, layer: 3 } }, layers).compare, null);
  const elsewhere = { ...there, trace: "0123456789abcdef", layer: 3 };
  assert.deepEqual(fitToTrace({ ...state, compare: elsewhere }, layers).compare, elsewhere);
});

test("a saved page shows one of its own heads for any address", () => {
  const layers = Array.from({ length: 3 }, () => ({ heads: 4, queries: 5, keys: 5 }));
  const held = [[1, 3], [2, 0]] as const;
  const at = (layer: number, head: number): [number, number] => {
    const state = fitToTrace({ ...DEFAULT_STATE, layer, head }, layers, held);
    return [state.layer, state.head];
  };
  assert.deepEqual([at(2, 0), at(1, 3), at(0, 0), at(9, 9)], [[2, 0], [1, 3], [1, 3], [1, 3]]);
});

test("next and previous heads are the nearest available ones", () => {
  const all = listHeads([{ heads: 2 }, { heads: 4 }, { heads: 3 }], null);
  assert.equal(all.length, 9);
  assert.deepEqual(findNextHead({ layer: 1, head: 1 }, all, 0, 1), [1, 2]);
  assert.deepEqual(findNextHead({ layer: 1, head: 1 }, all, 0, -1), [1, 0]);
  assert.equal(findNextHead({ layer: 1, head: 3 }, all, 0, 1), undefined);
  assert.deepEqual(findNextHead({ layer: 1, head: 3 }, all, 1, 0), [2, 2]);
  assert.deepEqual(findNextHead({ layer: 1, head: 3 }, all, -1, 0), [0, 1]);
  const held = listHeads([{ heads: 2 }, { heads: 4 }, { heads: 3 }], [[0, 0], [1, 0], [1, 3], [7, 7]]);
  assert.deepEqual(held, [[0, 0], [1, 0], [1, 3]]);
  assert.deepEqual(findNextHead({ layer: 1, head: 0 }, held, 0, 1), [1, 3]);
  assert.deepEqual(findNextHead({ layer: 0, head: 0 }, held, 1, 0), [1, 0]);
});

const NOTED = "#1/0123456789abcdef/L1H1/map?pin=q9,k3&note=";

test("a note belongs to its pins and its head", () => {
  const state = readAddress(`${NOTED}the%20earlier%20name`);
  assert.equal(state.note, "the earlier name");
  for (const change of [{ pinQuery: 4 }, { pinKey: null }, { pinKeyEnd: 5 }, { region: "1-2" }, { head: 0 }, { layer: 0 }, { trace: "" }]) {
    const store = createStore(state);
    store.set(change);
    assert.equal(store.get().note, "");
  }
  const store = createStore(state);
  store.set({ view: "text", zoom: 3, scale: "linear" });
  assert.equal(store.get().note, "the earlier name");
  const layers = [0, 1].map(() => ({ heads: 2, queries: 10, keys: 10 }));
  assert.equal(fitToTrace(state, layers).note, "the earlier name");
  assert.equal(fitToTrace({ ...state, pinQuery: 10 }, layers).note, "");
});

test("a note is printable, not long, and never without a pin", () => {
  assert.equal(readAddress(NOTED + "x".repeat(280)).note.length, 280);
  for (const note of ["x".repeat(281), "a%0Ab", "a%00b", "%E2%80%AEcba", "a%E2%80%A8b", ""]) assert.equal(readAddress(NOTED + note).note, "");
  assert.equal(readAddress("#1/0123456789abcdef/L1H1/map?note=alone").note, "");
  assert.equal(readAddress("#1/0123456789abcdef/L1H1/picture?region=3-5&note=part").note, "part");
  assert.equal(readAddress(`${NOTED}<script>alert(1)</script>`).note, "<script>alert(1)</script>");
});

test("a span is pinned by its last token, and a new pin ends it", () => {
  const state = readAddress("#1/0123456789abcdef/L1H1/map?pin=q8191,k2285..2324");
  assert.deepEqual([state.pinQuery, state.pinQueryEnd, state.pinKey, state.pinKeyEnd], [8191, null, 2285, 2324]);
  assert.equal(readAddress("#1/0123456789abcdef/L1H1/map?pin=k9..9").pinKeyEnd, null);
  const layers = [{ heads: 2, queries: 2300, keys: 2300 }, { heads: 2, queries: 2300, keys: 2300 }];
  const fitted = fitToTrace(state, layers);
  assert.deepEqual([fitted.pinQuery, fitted.pinKey, fitted.pinKeyEnd], [null, 2285, 2299]);
  const store = createStore(state);
  store.set({ pinQuery: 7 });
  assert.equal(store.get().pinKeyEnd, 2324);
  store.set({ pinKey: 7 });
  assert.equal(store.get().pinKeyEnd, null);
});

test("an address names a head or leaves the choice to the explorer", () => {
  for (const named of ["#1/-/L0H0/map", "1/0123456789abcdef/L12H3/text?z=2"]) assert.ok(namesHead(named));
  for (const open of ["", "#", "#1/-", "#1/0123456789abcdef", "#2/-/L0H0/map", "#token=L0H0"]) assert.ok(!namesHead(open));
});

test("swapping two heads twice changes nothing", () => {
  for (let seed = 1; seed <= 200; seed++) {
    const state = { ...randomState(randomOf(seed)), trace: "0123456789abcdef" };
    const once = { ...state, ...swapHeads(state) };
    if (state.compare) assert.deepEqual([once.layer, once.head], [state.compare.layer, state.compare.head]);
    assert.ok(isSameState({ ...once, ...swapHeads(once) }, state));
  }
});

test("a store calls its listeners only on changes", () => {
  const store = createStore(DEFAULT_STATE);
  const heard: [number, number, string][] = [];
  const leave = store.subscribe((now, before, how) => heard.push([before.layer, now.layer, how]));
  store.set({ layer: 3 }, "push");
  store.set({ layer: 3 });
  store.set({ range: null, others: [] });
  store.set({ layer: 4 });
  leave();
  store.set({ layer: 5 });
  assert.deepEqual(heard, [
    [0, 3, "push"],
    [3, 4, "push"],
  ]);
});

test("an eviction of an address is clamped, and fitted to the text", () => {
  const read = (kv: string): State["eviction"] => readAddress(`#1/-/L0H0/map?kv=${kv}`).eviction;
  assert.deepEqual(read("received,25"), { by: "received", keep: 25, context: null });
  assert.deepEqual(read("norm,999,0"), { by: "norm", keep: 100, context: null });
  assert.deepEqual(read("recent,0,700"), { by: "recent", keep: 1, context: 700 });
  for (const wrong of ["h2o,25", "received", "received,x", "received,2.5", "received,25,"]) assert.equal(read(wrong), null);
  const fitted = fitToTrace({ ...DEFAULT_STATE, eviction: read("recent,50,700") }, [{ heads: 1, queries: 700, keys: 700 }]);
  assert.deepEqual(fitted.eviction, { by: "recent", keep: 50, context: null });
});
