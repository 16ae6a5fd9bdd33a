// Colours of codes: five tables of 256 entries, and the lookup from a tile's byte to a pixel.
//
// In: a table's name and a range in bits. Out: 256 pixels, packed as a canvas stores them.
// Code 0 (masked) is fully transparent: the hatch below shows. Code 1 (zero) is always the darkest entry.
import { CODE_COUNT, decodeWeight } from "../server/tile_codec";
import { cividis, magma, ratioAnchors, viridis, type Encoded } from "./colour_tables";
import { decodeRatio, TOO_SMALL } from "../tiles/ratio_codec";
import { getDefaultRange, type Colours, type State } from "../state";

/** 256 x (red, green, blue). */
export type ColourTable = Uint8Array;

const ZERO_STEP = "m".charCodeAt(0);

function decodeTable(encoded: Encoded): ColourTable {
  const table = new Uint8Array(768);
  for (let channel = 0; channel < 3; channel++) {
    let value = encoded.first[channel] ?? 0;
    table[channel] = value;
    for (let entry = 1; entry < 256; entry++) {
      value += encoded.steps.charCodeAt(channel * 255 + entry - 1) - ZERO_STEP;
      table[entry * 3 + channel] = value;
    }
  }
  return table;
}

/** Entry 128, where the two are equal, is white. */
function createDivergingTable(): ColourTable {
  const table = new Uint8Array(768);
  ratioAnchors.reduce((from, to) => {
    for (let entry = from[0]; entry <= to[0]; entry++) {
      const share = (entry - from[0]) / (to[0] - from[0]);
      for (const channel of [1, 2, 3] as const) table[entry * 3 + channel - 1] = from[channel] + (to[channel] - from[channel]) * share + 0.5;
    }
    return to;
  });
  return table;
}

const createGreyTable = (): ColourTable => Uint8Array.from({ length: 768 }, (_, index) => Math.floor(index / 3));

/** The colours of weights that a reader may choose, and those of a ratio of two. */
export type Palette = Colours | "ratio";

const tables = new Map<Palette, ColourTable>();

export function getTable(name: Palette): ColourTable {
  let table = tables.get(name);
  if (!table) {
    table = name === "ratio" ? createDivergingTable() : name === "grey" ? createGreyTable() : decodeTable({ cividis, viridis, magma }[name]);
    tables.set(name, table);
  }
  return table;
}

/** Of two weights that are too small to compare: a grey that is in no table of ratios. */
export const TOO_SMALL_GREY = [176, 176, 176] as const;

export interface ColourScale {
  colours: Palette;
  /** Bits: the table runs from 2**low to 2**high. */
  range: readonly [number, number];
  /**
   * "log": in the logarithm of the weight. "linear": in the weight, from 0 to 2**high.
   * "uniform": in the logarithm of the weight times the keys that its query sees; 0 bits is uniform attention.
   */
  kind: "log" | "linear" | "uniform";
}

/** Bits above uniform attention; what gets less than uniform is the darkest entry. */
const UNIFORM_RANGE = [0, 8] as const;

/** The scale of weights in this state; `stride` is the side of a bin. Whoever sets a range means weights. */
export function chooseScale({ colours, scale, range }: State, stride: number, keys: number): ColourScale {
  const kind = scale !== "auto" ? scale : range === null && stride > 1 ? "uniform" : "log";
  return { colours, kind, range: kind === "uniform" ? UNIFORM_RANGE : (range ?? getDefaultRange(keys)) };
}

export function isSameScale(one: ColourScale | null, other: ColourScale): boolean {
  return one?.colours === other.colours && one.kind === other.kind && one.range[0] === other.range[0] && one.range[1] === other.range[1];
}

/** Which of the 256 entries a weight gets; `keys` is how many its query sees. */
export function getEntry(weight: number, scale: ColourScale, keys = 1): number {
  const value = scale.kind === "uniform" ? weight * keys : weight;
  if (!(value > 0)) return 0;
  const [low, high] = scale.range;
  const share = scale.kind === "linear" ? value / 2 ** high : (Math.log2(value) - low) / (high - low);
  return Math.min(255, Math.max(0, Math.floor(share * 255 + 0.5)));
}

export function toCss(table: ColourTable, entry: number): string {
  return `rgb(${table[entry * 3] ?? 0} ${table[entry * 3 + 1] ?? 0} ${table[entry * 3 + 2] ?? 0})`;
}

/** True where black ink reads better than white on this entry. */
export function isBright(table: ColourTable, entry: number): boolean {
  const [red, green, blue] = [table[entry * 3] ?? 0, table[entry * 3 + 1] ?? 0, table[entry * 3 + 2] ?? 0];
  return 0.299 * red + 0.587 * green + 0.114 * blue > 128;
}

/** The pixel of every code, in the byte order of this machine, ready for a Uint32Array over ImageData. */
export function createLookup(scale: ColourScale): Uint32Array {
  const table = getTable(scale.colours);
  const ratio = scale.colours === "ratio";
  const pixels = new Uint8Array(CODE_COUNT * 4);
  for (let code = 1; code < CODE_COUNT; code++) {
    const entry = getEntry(ratio ? decodeRatio(code) : decodeWeight(code), scale);
    pixels.set(ratio && code === TOO_SMALL ? TOO_SMALL_GREY : table.subarray(entry * 3, entry * 3 + 3), code * 4);
    pixels[code * 4 + 3] = 255;
  }
  return new Uint32Array(pixels.buffer);
}

/** The same relative to uniform attention: a lookup for a query that sees so many keys. Fast: each row of a tile has its own. */
export function createUniformLookups({ colours, range: [low, high] }: ColourScale): (keys: number) => Uint32Array {
  const table = getTable(colours);
  const pixels = new Uint8Array(1024).fill(255);
  for (let entry = 0; entry < 256; entry++) pixels.set(table.subarray(entry * 3, entry * 3 + 3), entry * 4);
  const entries = new Uint32Array(pixels.buffer);
  const bits = Float64Array.from({ length: CODE_COUNT }, (_, code) => Math.log2(decodeWeight(code)));
  return (keys) => {
    const lookup = new Uint32Array(CODE_COUNT);
    const [first, step] = [Math.log2(keys) - low, 255 / (high - low)];
    for (let code = 1; code < CODE_COUNT; code++) {
      const entry = Math.floor(((bits[code] as number) + first) * step + 0.5);
      lookup[code] = entries[entry < 0 ? 0 : entry > 255 ? 255 : entry] as number;
    }
    return lookup;
  };
}
