// Bodies as a server would send them, written by hand from the description of the format.

export interface Body {
  rows: number;
  columns: number;
  codes?: number[];
  floats?: number[];
  z?: number;
  y?: number;
  x?: number;
  channel?: number;
  flags?: number;
  log2min?: number;
  log2max?: number;
}

export function createBody(body: Body): ArrayBuffer {
  const data = body.floats ? new Uint8Array(Float32Array.from(body.floats).buffer) : Uint8Array.from(body.codes ?? []);
  const result = new ArrayBuffer(32 + data.length);
  const view = new DataView(result);
  [..."SLT1"].forEach((letter, index) => view.setUint8(index, letter.charCodeAt(0)));
  view.setUint8(4, body.floats ? 2 : 1);
  view.setUint8(5, body.channel ?? 0);
  view.setUint8(7, body.flags ?? 0);
  view.setUint16(8, body.rows, true);
  view.setUint16(10, body.columns, true);
  view.setUint32(12, body.z ?? 0, true);
  view.setUint32(16, body.y ?? 0, true);
  view.setUint32(20, body.x ?? 0, true);
  view.setFloat32(24, body.log2min ?? 0, true);
  view.setFloat32(28, body.log2max ?? 0, true);
  new Uint8Array(result).set(data, 32);
  return result;
}

/** A whole tile of one code. */
export function plainTile(code: number, size = 256, flags = 0): ArrayBuffer {
  return createBody({ rows: size, columns: size, codes: new Array<number>(size * size).fill(code), flags });
}
