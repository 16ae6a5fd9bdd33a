// The bytes of a tile: a 32-byte header, then one byte per bin (u8log) or float32.
//
// u8log: 0 is masked or outside; 1..255 are 1 + round(254 (log2 p + 32) / 32), clamped; 1 also means zero. One step is 0.126 octave.

export const CODE_COUNT = 256;
export const HEADER_BYTES = 32;
const OCTAVES = 32;
const STEPS = 254;
const U8LOG = 1;
const FLOAT32 = 2;

export interface TileHeader {
  dtype: number;
  channel: number;
  norm: number;
  causalCut: boolean;
  partial: boolean;
  exact: boolean;
  rows: number;
  columns: number;
  z: number;
  y: number;
  x: number;
  log2min: number;
  log2max: number;
}

export interface Tile extends TileHeader {
  codes: Uint8Array;
}

export interface FloatTile extends TileHeader {
  values: Float32Array;
}

export function encodeWeight(value: number | null): number {
  if (value === null) return 0;
  if (!(value > 0)) return 1;
  const code = 1 + Math.floor((STEPS * (Math.log2(value) + OCTAVES)) / OCTAVES + 0.5);
  return Math.min(255, Math.max(1, code));
}

const values = Float64Array.from({ length: CODE_COUNT }, (_, code) =>
  code === 0 ? NaN : code === 1 ? 0 : 2 ** (((code - 1) * OCTAVES) / STEPS - OCTAVES),
);

/** The weight a code stands for; NaN for masked, 0 for code 1. */
export function decodeWeight(code: number): number {
  return values[code] ?? NaN;
}

export function readHeader(body: ArrayBuffer): TileHeader {
  const view = new DataView(body);
  if (body.byteLength < HEADER_BYTES || view.getUint32(0, false) !== 0x534c5431) {
    throw new Error(`A body of ${body.byteLength} bytes does not begin with the mark SLT1: it is no tile of this version.`);
  }
  const flags = view.getUint8(7);
  return {
    dtype: view.getUint8(4),
    channel: view.getUint8(5),
    norm: view.getUint8(6),
    causalCut: (flags & 1) !== 0,
    partial: (flags & 2) !== 0,
    exact: (flags & 4) !== 0,
    rows: view.getUint16(8, true),
    columns: view.getUint16(10, true),
    z: view.getUint32(12, true),
    y: view.getUint32(16, true),
    x: view.getUint32(20, true),
    log2min: view.getFloat32(24, true),
    log2max: view.getFloat32(28, true),
  };
}

function readCheckedHeader(body: ArrayBuffer, dtype: number, bytes: number): TileHeader {
  const header = readHeader(body);
  const expected = HEADER_BYTES + header.rows * header.columns * bytes;
  if (header.dtype !== dtype || body.byteLength !== expected) {
    throw new Error(
      `A body of type ${header.dtype} with ${body.byteLength} bytes arrived; type ${dtype} with ${expected} bytes was expected ` +
        `for ${header.rows} x ${header.columns}.`,
    );
  }
  return header;
}

export function readTile(body: ArrayBuffer): Tile {
  return { ...readCheckedHeader(body, U8LOG, 1), codes: new Uint8Array(body, HEADER_BYTES) };
}

export function readFloats(body: ArrayBuffer): FloatTile {
  return { ...readCheckedHeader(body, FLOAT32, 4), values: new Float32Array(body, HEADER_BYTES) };
}

/** What a body that is made in the browser says about itself; the rest of the header follows from its values. */
export type BodyHeader = Pick<TileHeader, "channel" | "causalCut" | "exact" | "rows" | "columns" | "z" | "y" | "x">;

const NO_CHANNEL = 2;

/** The body of a tile of codes, made of `values`. */
export function packCodes(codes: Uint8Array, values: Iterable<number>, header: BodyHeader): ArrayBuffer {
  const body = packHeader(U8LOG, values, header, codes.length);
  new Uint8Array(body, HEADER_BYTES).set(codes);
  return body;
}

/** The body of rows of floats; NaN where masked. */
export function packFloats(values: Float32Array, header: Omit<BodyHeader, "channel" | "causalCut">): ArrayBuffer {
  const body = packHeader(FLOAT32, values, { ...header, channel: NO_CHANNEL, causalCut: values.some(Number.isNaN) }, 4 * values.length);
  new Float32Array(body, HEADER_BYTES).set(values);
  return body;
}

function packHeader(dtype: number, values: Iterable<number>, { channel, causalCut, exact, rows, columns, z, y, x }: BodyHeader, bytes: number): ArrayBuffer {
  const body = new ArrayBuffer(HEADER_BYTES + bytes);
  const view = new DataView(body);
  let [least, most] = [Infinity, 0];
  for (const value of values) {
    if (!(value > 0)) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  view.setUint32(0, 0x534c5431, false);
  [dtype, channel, 0, Number(causalCut) | (Number(exact) << 2)].forEach((part, index) => view.setUint8(4 + index, part));
  [rows, columns].forEach((part, index) => view.setUint16(8 + 2 * index, part, true));
  [z, y, x].forEach((part, index) => view.setUint32(12 + 4 * index, part, true));
  [least, most].forEach((value, index) => view.setFloat32(24 + 4 * index, most > 0 ? Math.log2(value) : 0, true));
  return body;
}
