/**
 * The state of the explorer as one plain value, and its address.
 *
 * In: an untrusted URL fragment, or a change from a panel.
 * Out: a valid State, and its unique fragment.
 * The shape of a trace is not known here; `fitToTrace` takes it.
 */

export type View = "map" | "text" | "heads" | "picture" | "sentence";
/** What the picture shows: what the query attends to, what attends to the key, the mean of all queries, attention rollout. */
export type PictureKind = "query" | "key" | "received" | "rollout";
export type ChannelMode = "both" | "max" | "mean";
export type Colours = "cividis" | "viridis" | "magma" | "grey";
/** "uniform": relative to uniform attention. "auto": that where a pixel covers many pairs, else "log". */
export type Scale = "auto" | "log" | "linear" | "uniform";
export type HeadsAs = "grid" | "table" | "scatter";
export type CompareMode = "side" | "split" | "ratio";
export type AblationMethod = "zero" | "mean";
export type EvictionPolicy = "received" | "window" | "recent" | "expected" | "norm" | "random";
/** What colours the navigator; "auto" is the pinned link, or the labels when nothing is pinned. */
export type QuestionChoice = "auto" | "label" | "link" | "ablation" | "difference";
export type HeadId = readonly [layer: number, head: number];

/** Key-value pairs evicted from the KV cache after a context. */
export interface Eviction {
  readonly by: EvictionPolicy;
  /** Of the pairs of each head, in percent. */
  readonly keep: number;
  /** In tokens; null is the first half of the text. */
  readonly context: number | null;
}

/** What the shown head (A) is compared with (B). */
export interface ComparedHead {
  /** "" is the same trace as A's. */
  readonly trace: string;
  readonly layer: number;
  readonly head: number;
  readonly mode: CompareMode;
}

/** A position on each axis. */
export interface Place {
  readonly query: number;
  readonly key: number;
}

export interface State {
  readonly trace: string;
  readonly layer: number;
  readonly head: number;
  readonly view: View;
  /** Of the map: in tokens, with a fraction; null means: fit the whole matrix. */
  readonly centre: Place | null;
  /** CSS pixels per token; null means: fit. */
  readonly zoom: number | null;
  /** The first visible tokens of the text view; null is the beginning. */
  readonly textPlace: Place | null;
  readonly pinQuery: number | null;
  readonly pinKey: number | null;
  /** The last token of a pinned span; null means that one token is pinned. */
  readonly pinQueryEnd: number | null;
  readonly pinKeyEnd: number | null;
  /** Keys that are pinned instead of `pinKey`, such as a part of an image: ranges such as "3-5,9-11", ends excluded; "" is none. */
  readonly region: string;
  /** What the author of a link says about its pins; plain text, "" without. New pins and other heads have none. */
  readonly note: string;
  readonly pictureKind: PictureKind;
  readonly question: QuestionChoice;
  readonly channel: ChannelMode;
  /** In bits: the colours run from weight 2**low to 2**high; null depends on the sequence length, see `getDefaultRange`. */
  readonly range: readonly [number, number] | null;
  readonly colours: Colours;
  readonly scale: Scale;
  readonly hideSink: boolean;
  /** Show the trace without its causal mask. `trace` stays the one that the model computed. */
  readonly unmasked: boolean;
  /** The text view counts in words instead of tokens. */
  readonly words: boolean;
  readonly headsAs: HeadsAs;
  /** The score that orders the heads, with "-" from large to small; "" is by layer and head. */
  readonly order: string;
  /** The scores across and up in the scatter plot of heads. */
  readonly axes: readonly [string, string];
  /** Only heads with this label; "" is all. */
  readonly label: string;
  /** Only heads with such a score, such as "entropy<1"; "" is all. */
  readonly filter: string;
  /** Heads to ablate when the model runs again. */
  readonly ablated: readonly HeadId[];
  /** What replaces their output: zero or its mean. */
  readonly ablationMethod: AblationMethod;
  /** Evicted keys are hatched; null keeps all. */
  readonly eviction: Eviction | null;
  readonly compare: ComparedHead | null;
  /** Everything is half as large again, for projectors. */
  readonly large: boolean;
  /** Two maps move together. */
  readonly locked: boolean;
  /** The colours of a ratio of two heads run from 2**-bits to 2**bits. */
  readonly bits: number;
  /** Unknown keys of the address, kept so that an older explorer does not lose them. */
  readonly others: readonly (readonly [string, string])[];
}

/** "push": a change by the user, which Back and undo take back. "replace": a correction, which belongs to the change before it. */
export type HistoryMode = "replace" | "push";

export interface Store {
  get(): State;
  set(change: Partial<State>, how?: HistoryMode): void;
  subscribe(listener: (now: State, before: State, how: HistoryMode) => void): () => void;
}

export const CHANNELS: readonly ChannelMode[] = ["both", "max", "mean"];
export const SCALES: readonly Scale[] = ["auto", "log", "linear", "uniform"];
export const COLOURS: readonly Colours[] = ["cividis", "viridis", "magma", "grey"];
const VIEWS: readonly View[] = ["map", "text", "heads", "picture", "sentence"];
export const PICTURE_KINDS: readonly PictureKind[] = ["query", "key", "received", "rollout"];
const HEADS_AS: readonly HeadsAs[] = ["grid", "table", "scatter"];
export const QUESTIONS: readonly QuestionChoice[] = ["auto", "label", "link", "ablation", "difference"];
export const FILTER_PATTERN = /^([a-z_]{1,40})(<=|>=|<|>)(-?\d{1,9}(?:\.\d{1,9})?)$/;
export const REGION_PATTERN = /^\d{1,7}-\d{1,7}(?:,\d{1,7}-\d{1,7}){0,255}$/;
export const COMPARE_MODES: readonly CompareMode[] = ["side", "split", "ratio"];
export const POLICIES: readonly EvictionPolicy[] = ["received", "window", "recent", "expected", "norm", "random"];
export const MAX_ABLATED = 64;
export const LOWEST_BITS = -32;
export const HIGHEST_BITS = 0;
/** A range narrower than this shows two colours and nothing between. */
const NARROWEST_RANGE = 0.5;

const LARGEST_POSITION = 9_999_999;
const SMALLEST_ZOOM = 1e-6;
const LARGEST_ZOOM = 64;
const MAX_OTHERS = 16;
const MAX_OTHER_LENGTH = 200;
/** 64 heads of the largest numbers. */
const MAX_KNOWN_LENGTH = 1200;

export const DEFAULT_STATE: State = {
  trace: "",
  layer: 0,
  head: 0,
  view: "map",
  centre: null,
  zoom: null,
  textPlace: null,
  pinQuery: null,
  pinKey: null,
  pinQueryEnd: null,
  pinKeyEnd: null,
  note: "",
  region: "",
  pictureKind: "query",
  question: "auto",
  channel: "both",
  range: null,
  colours: "cividis",
  scale: "auto",
  hideSink: false,
  unmasked: false,
  words: false,
  headsAs: "grid",
  order: "",
  axes: ["entropy", "sink"],
  label: "",
  filter: "",
  ablated: [],
  ablationMethod: "zero",
  eviction: null,
  compare: null,
  large: false,
  locked: true,
  bits: 6,
  others: [],
};

export function createStore(initial: State): Store {
  let state = initial;
  const listeners = new Set<(now: State, before: State, how: HistoryMode) => void>();
  return {
    get: () => state,
    set(change, how = "push") {
      const before = state;
      const after = { ...before, ...withSpans(change) };
      if (isSameState(before, after)) return;
      state = after;
      // A listener may call set again; later listeners then get the newest state.
      for (const listener of [...listeners]) listener(state, before, how);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** A new pin is one token, unless its end is given as well, and the note was about other pins or another head. */
function withSpans(change: Partial<State>): Partial<State> {
  return {
    ...("pinQuery" in change && { pinQueryEnd: null }),
    ...("pinKey" in change && { pinKeyEnd: null, region: "" }),
    ...(NOTED.some((name) => name in change) && { note: "" }),
    ...change,
  };
}

const NOTED = ["trace", "layer", "head", "pinQuery", "pinQueryEnd", "pinKey", "pinKeyEnd", "region"];

export function isSameState(one: State, other: State): boolean {
  return (Object.keys(DEFAULT_STATE) as (keyof State)[]).every(
    (name) => one[name] === other[name] || JSON.stringify(one[name]) === JSON.stringify(other[name]),
  );
}

/** Whether only the place in the map or in the text has changed: many such changes follow each other. */
export function isMove(before: State, after: State): boolean {
  return isSameState({ ...before, centre: after.centre, zoom: after.zoom, textPlace: after.textPlace }, after);
}

/** Read any fragment, with or without its `#`, into a valid state. */
export function readAddress(fragment: string): State {
  const text = fragment.startsWith("#") ? fragment.slice(1) : fragment;
  const mark = text.indexOf("?");
  const path = (mark < 0 ? text : text.slice(0, mark)).split("/");
  // Another version may use the same keys differently, so use the defaults.
  if (path[0] !== "1") return DEFAULT_STATE;
  const place = readHead(path[2]);
  const pairs = mark < 0 ? [] : readPairs(text.slice(mark + 1));
  const known = new Map(pairs.filter(([key]) => KNOWN_KEYS.has(key)));
  const pins = /^(?:q(\d{1,7})(?:\.\.(\d{1,7}))?)?(?:,?k(\d{1,7})(?:\.\.(\d{1,7}))?)?$/.exec(known.get("pin") ?? "");
  const [pinQuery = null, pinQueryEnd = null, pinKey = null, pinKeyEnd = null] = (pins?.slice(1) ?? []).map((text) =>
    text === undefined ? undefined : Number(text),
  );
  const region = pinKey === null ? matchOrEmpty(REGION_PATTERN, known.get("region")) : "";
  const trace = TRACE_PATTERN.test(path[1] ?? "") ? (path[1] ?? "") : "";
  return {
    trace,
    layer: place?.[0] ?? 0,
    head: place?.[1] ?? 0,
    view: chooseKnown(VIEWS, path[3]),
    centre: readPlace(known.get("c")),
    zoom: readZoom(known.get("z")),
    textPlace: readPlace(known.get("t")),
    pinQuery,
    pinKey,
    pinQueryEnd: clampEnd(pinQuery, pinQueryEnd),
    pinKeyEnd: clampEnd(pinKey, pinKeyEnd),
    region,
    note: pinQuery === null && pinKey === null && region === "" ? "" : matchOrEmpty(NOTE_PATTERN, known.get("note")),
    pictureKind: chooseKnown(PICTURE_KINDS, known.get("pic")),
    question: chooseKnown(QUESTIONS, known.get("by")),
    channel: chooseKnown(CHANNELS, known.get("agg")),
    range: readRange(known.get("r")),
    colours: chooseKnown(COLOURS, known.get("cm")),
    // Older addresses have lin=1.
    scale: known.get("lin") === "1" ? "linear" : chooseKnown(SCALES, known.get("scale")),
    hideSink: known.get("sink") === "hide",
    unmasked: known.get("unmasked") === "1",
    words: known.get("unit") === "word",
    headsAs: chooseKnown(HEADS_AS, known.get("as")),
    order: matchOrEmpty(/^-?[a-z_]{1,40}$/, known.get("sort")),
    axes: readAxes(known.get("xy")),
    label: matchOrEmpty(/^[a-z]{1,40}$/, known.get("label")),
    filter: matchOrEmpty(FILTER_PATTERN, known.get("where")),
    ablated: readAblated(known.get("abl")),
    ablationMethod: known.get("how") === "mean" ? "mean" : "zero",
    eviction: readEviction(known.get("kv")),
    compare: readComparedHead(known.get("cmp"), trace),
    large: known.get("large") === "1",
    locked: known.get("lock") !== "0",
    bits: clampBits(readNumber(known.get("bits")) ?? DEFAULT_STATE.bits),
    others: pairs.filter(([key]) => !KNOWN_KEYS.has(key)).slice(0, MAX_OTHERS),
  };
}

/** Printable text; no control characters, and none that change the direction of what follows. */
const NOTE_PATTERN = /^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]{1,280}$/u;
const TRACE_PATTERN = /^[0-9a-f]{16,64}$/;
const KNOWN_KEYS = new Set(
  ["c", "z", "t", "pin", "region", "note", "pic", "agg", "r", "cm", "lin", "scale", "sink", "unmasked"].concat(
    ["unit", "as", "sort", "xy", "label", "by", "where", "abl", "how", "kv", "cmp", "large", "lock", "bits"],
  ),
);

function readPairs(query: string): [string, string][] {
  const pairs = new Map<string, string>();
  for (const part of query.split("&")) {
    const equals = part.indexOf("=");
    const key = decodePart(equals < 0 ? part : part.slice(0, equals));
    const value = decodePart(equals < 0 ? "" : part.slice(equals + 1));
    if (key === null || value === null || key === "" || pairs.has(key)) continue;
    const longest = KNOWN_KEYS.has(key) ? MAX_KNOWN_LENGTH : MAX_OTHER_LENGTH;
    if (key.length <= MAX_OTHER_LENGTH && value.length <= longest) pairs.set(key, value);
  }
  return [...pairs];
}

function decodePart(text: string): string | null {
  try {
    const plain = decodeURIComponent(text);
    encodeURIComponent(plain); // a lone surrogate could be read but never written back
    return plain;
  } catch {
    return null;
  }
}

/** A plain decimal number; no exponent, no hexadecimal, no Infinity. */
function readNumber(text: string | undefined): number | null {
  return text !== undefined && /^-?\d{1,9}(\.\d{1,9})?$/.test(text) ? Number(text) : null;
}

function readPair(text: string | undefined): [number, number] | null {
  const parts = (text ?? "").split(",");
  const first = readNumber(parts[0]);
  const second = readNumber(parts[1]);
  return parts.length === 2 && first !== null && second !== null ? [first, second] : null;
}

function readPlace(text: string | undefined): Place | null {
  const pair = readPair(text);
  return pair && { query: roundPosition(pair[0]), key: roundPosition(pair[1]) };
}

function readZoom(text: string | undefined): number | null {
  const number = readNumber(text);
  return number === null || number <= 0 ? null : roundZoom(number);
}

function readRange(text: string | undefined): readonly [number, number] | null {
  const pair = readPair(text);
  return pair && clampRange(pair[0], pair[1]);
}

function readHead(text: string | undefined): HeadId | null {
  const found = /^L(\d{1,7})H(\d{1,7})$/.exec(text ?? "");
  return found && [Number(found[1]), Number(found[2])];
}

/** Whether an address names a head; otherwise the explorer chooses one. */
export function namesHead(fragment: string): boolean {
  return /^#?1\/[^/?]*\/L\d{1,7}H\d{1,7}/.test(fragment);
}

/** The end of a span, or null where it is not after the start. */
function clampEnd(start: number | null, end: number | null, last = LARGEST_POSITION): number | null {
  const clamped = Math.min(end ?? -1, last);
  return start !== null && clamped > start ? clamped : null;
}

function readAblated(text: string | undefined): readonly HeadId[] {
  const heads = new Map((text ?? "").split(",").flatMap((part) => {
    const head = readHead(part);
    return head ? [[head.join(), head] as const] : [];
  }));
  return [...heads.values()].slice(0, MAX_ABLATED);
}

function readEviction(text: string | undefined): Eviction | null {
  const [, policy, keep, context] = /^([a-z]+),(\d{1,3})(?:,(\d{1,7}))?$/.exec(text ?? "") ?? [];
  const by = POLICIES.find((known) => known === policy);
  return by ? clampEviction({ by, keep: Number(keep), context: context === undefined ? null : Number(context) }) : null;
}

/** An eviction of a text with so many keys: it keeps 1 to 100 percent, and something follows the context. */
export function clampEviction({ by, keep, context }: Eviction, keys = LARGEST_POSITION): Eviction {
  const isContext = context !== null && context >= 1 && context < keys;
  return { by, keep: Math.round(clamp(keep, 1, 100)), context: isContext ? context : null };
}

function readAxes(text: string | undefined): readonly [string, string] {
  const [across, up] = /^([a-z_]{1,40}),([a-z_]{1,40})$/.exec(text ?? "")?.slice(1) ?? [];
  return across !== undefined && up !== undefined ? [across, up] : DEFAULT_STATE.axes;
}

function readComparedHead(text: string | undefined, own: string): ComparedHead | null {
  const [, trace = "", place, mode] = /^(?:([0-9a-f]{16,64}):)?(L\d+H\d+),([a-z]+)$/.exec(text ?? "") ?? [];
  const head = readHead(place);
  if (!head || !COMPARE_MODES.some((known) => known === mode)) return null;
  return { trace: trace === own ? "" : trace, layer: head[0], head: head[1], mode: chooseKnown(COMPARE_MODES, mode) };
}

function matchOrEmpty(pattern: RegExp, text = ""): string {
  return pattern.test(text) ? text : "";
}

function chooseKnown<T extends string>(choices: readonly [T, ...T[]] | readonly T[], text: string | undefined): T {
  return choices.find((choice) => choice === text) ?? (choices[0] as T);
}

/** The unique fragment of a state: without defaults, known keys in a fixed order, then the unknown ones. */
export function writeAddress(state: State): string {
  const parts: [string, string][] = [];
  const formatPlace = ({ query, key }: Place): string => `${roundPosition(query)},${roundPosition(key)}`;
  if (state.centre) parts.push(["c", formatPlace(state.centre)]);
  if (state.zoom !== null) parts.push(["z", formatDecimal(roundZoom(state.zoom))]);
  if (state.textPlace) parts.push(["t", formatPlace(state.textPlace)]);
  const pins = [
    formatPin("q", state.pinQuery, state.pinQueryEnd),
    formatPin("k", state.pinKey, state.pinKeyEnd),
  ].filter((pin) => pin !== "");
  if (pins.length > 0) parts.push(["pin", pins.join(",")]);
  if (state.region !== "") parts.push(["region", state.region]);
  if (state.note !== "") parts.push(["note", state.note]);
  if (state.pictureKind !== DEFAULT_STATE.pictureKind) parts.push(["pic", state.pictureKind]);
  if (state.channel !== DEFAULT_STATE.channel) parts.push(["agg", state.channel]);
  if (state.range !== null) parts.push(["r", clampRange(state.range[0], state.range[1]).join(",")]);
  if (state.colours !== DEFAULT_STATE.colours) parts.push(["cm", state.colours]);
  if (state.scale !== DEFAULT_STATE.scale) parts.push(["scale", state.scale]);
  if (state.hideSink) parts.push(["sink", "hide"]);
  if (state.unmasked) parts.push(["unmasked", "1"]);
  if (state.words) parts.push(["unit", "word"]);
  if (state.headsAs !== DEFAULT_STATE.headsAs) parts.push(["as", state.headsAs]);
  if (state.order !== "") parts.push(["sort", state.order]);
  if (state.axes.join() !== DEFAULT_STATE.axes.join()) parts.push(["xy", state.axes.join()]);
  if (state.label !== "") parts.push(["label", state.label]);
  if (state.question !== DEFAULT_STATE.question) parts.push(["by", state.question]);
  if (state.filter !== "") parts.push(["where", state.filter]);
  if (state.ablated.length > 0) parts.push(["abl", state.ablated.map(formatHeadId).join()]);
  if (state.ablationMethod !== "zero") parts.push(["how", state.ablationMethod]);
  if (state.eviction) parts.push(["kv", [state.eviction.by, state.eviction.keep, state.eviction.context ?? []].flat().join()]);
  if (state.compare) {
    const { trace, layer, head, mode } = state.compare;
    parts.push(["cmp", `${trace && `${trace}:`}${formatHeadId([layer, head])},${mode}`]);
  }
  if (state.large) parts.push(["large", "1"]);
  if (!state.locked) parts.push(["lock", "0"]);
  if (state.bits !== DEFAULT_STATE.bits) parts.push(["bits", formatDecimal(clampBits(state.bits))]);
  const query = [...parts, ...state.others].map(([key, value]) => `${encodePart(key)}=${encodePart(value)}`).join("&");
  const path = `#1/${state.trace || "-"}/${formatHeadId([state.layer, state.head])}/${state.view}`;
  return query === "" ? path : `${path}?${query}`;
}

function formatPin(side: string, start: number | null, end: number | null): string {
  return start === null ? "" : `${side}${start}${end === null ? "" : `..${end}`}`;
}

/** Commas and colons stay readable: they mean nothing inside a fragment. */
function encodePart(text: string): string {
  return encodeURIComponent(text).replaceAll("%2C", ",").replaceAll("%3A", ":");
}

function formatHeadId([layer, head]: HeadId): string {
  return `L${layer}H${head}`;
}

function formatDecimal(number: number): string {
  // String() turns to exponents below 1e-6 only, which is where the zoom ends.
  return String(number);
}

function clamp(value: number, low: number, high: number): number {
  return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : low;
}

/** Two decimals: a hundredth of a token is less than a pixel at the deepest zoom. */
function roundPosition(value: number): number {
  return Math.round(clamp(value, 0, LARGEST_POSITION) * 100) / 100;
}

/** Four significant digits, in plain decimals: at a thousandth of the zoom the eye sees no difference. */
function roundZoom(value: number): number {
  const held = clamp(value, SMALLEST_ZOOM, LARGEST_ZOOM);
  return Number(Number(held.toPrecision(4)).toFixed(9));
}

/** Half a bit to ten, in quarters: beyond ten the smaller of the two may be less than the codes can hold. */
export function clampBits(bits: number): number {
  return Math.round(clamp(bits, NARROWEST_RANGE, 10) * 4) / 4;
}

/** A range inside what the codes can hold, low below high, in quarter bits as the fields step. */
export function clampRange(low: number, high: number): readonly [number, number] {
  if (Number.isNaN(low) || Number.isNaN(high)) return [LOWEST_BITS, HIGHEST_BITS];
  const [first, second] = low <= high ? [low, high] : [high, low];
  const roundToQuarter = (value: number): number => Math.round(value * 4) / 4 + 0;
  const top = roundToQuarter(clamp(second, LOWEST_BITS + NARROWEST_RANGE, HIGHEST_BITS));
  return [roundToQuarter(clamp(first, LOWEST_BITS, top - NARROWEST_RANGE)), top];
}

/**
 * Fit a state to a trace of this shape: reset layers, heads and pins that do not exist.
 *
 * `available` are the heads of a saved page; null is all. A comparison with another trace is kept,
 * since its shape is not known here.
 */
export function fitToTrace(
  state: State,
  layers: readonly { readonly heads: number; readonly queries: number; readonly keys: number }[],
  available: readonly HeadId[] | null = null,
): State {
  const exists = (layer: number, head: number): boolean =>
    head < (layers[layer]?.heads ?? 0) && isAvailable(available, layer, head);
  const nearest = Math.min(state.layer, Math.max(0, layers.length - 1));
  const clamped = Math.min(state.head, Math.max(0, (layers[nearest]?.heads ?? 1) - 1));
  const [layer, head] = isAvailable(available, nearest, clamped) ? [nearest, clamped] : (available?.[0] ?? [0, 0]);
  const shape = layers[layer] ?? { queries: 0, keys: 0 };
  const { compare, ablated } = state;
  const pinQuery = state.pinQuery !== null && state.pinQuery < shape.queries ? state.pinQuery : null;
  const pinKey = state.pinKey !== null && state.pinKey < shape.keys ? state.pinKey : null;
  const region = Number(/\d+$/.exec(state.region)?.[0] ?? 0) <= shape.keys ? state.region : "";
  const clampPlace = (place: Place | null): Place | null =>
    place && { query: Math.min(place.query, shape.queries), key: Math.min(place.key, shape.keys) };
  return {
    ...state,
    layer,
    head,
    ablated: ablated.filter(([one, other]) => exists(one, other)),
    compare: compare && (compare.trace !== "" || exists(compare.layer, compare.head)) ? compare : null,
    eviction: state.eviction && clampEviction(state.eviction, shape.keys),
    pinQuery,
    pinKey,
    pinQueryEnd: clampEnd(pinQuery, state.pinQueryEnd, shape.queries - 1),
    pinKeyEnd: clampEnd(pinKey, state.pinKeyEnd, shape.keys - 1),
    region,
    // A note about pins that do not exist would be read as one about the others.
    note: pinQuery === state.pinQuery && pinKey === state.pinKey && region === state.region ? state.note : "",
    centre: clampPlace(state.centre),
    textPlace: clampPlace(state.textPlace),
  };
}

/** Whether a head can be opened; null stands for all heads. */
export function isAvailable(available: readonly HeadId[] | null, layer: number, head: number): boolean {
  return available === null || available.some(([one, other]) => one === layer && other === head);
}

/** A and B change places. */
export function swapHeads({ trace, layer, head, compare }: State): Partial<State> {
  if (!compare) return {};
  return {
    trace: compare.trace || trace,
    layer: compare.layer,
    head: compare.head,
    compare: { trace: compare.trace && trace, layer, head, mode: compare.mode },
  };
}

/** A short row has no small weights: over twenty bits it would be one colour. */
export function getDefaultRange(keys: number): readonly [number, number] {
  return keys < 200 ? [-10, 0] : [-20, 0];
}
