// Blocks of exact weights as NPY and CSV files, as the server writes them.

const MAX_TEXT_LENGTH = 200;

/** An NPY file of float32, (rows, columns). */
export function createNpy(weights: Float32Array, rows: number, columns: number): ArrayBuffer {
  const about = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${columns}), }`;
  const length = Math.ceil((about.length + 11) / 64) * 64 - 10;
  const head = `\x93NUMPY\x01\x00${String.fromCharCode(length & 255, length >> 8)}${about.padEnd(length - 1)}\n`;
  const file = new Uint8Array(head.length + weights.byteLength);
  for (let at = 0; at < head.length; at++) file[at] = head.charCodeAt(at);
  file.set(new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength), head.length);
  return file.buffer;
}

/** A CSV file whose first row and column name the tokens; masked cells are empty. */
export function createCsv(weights: Float32Array, [i0, i1]: readonly [number, number], [j0, j1]: readonly [number, number], queries: readonly string[] | null, keys: readonly string[] | null): ArrayBuffer {
  const lines = [["", ...labelPositions(j0, j1, keys)].map(quote).join(",")];
  labelPositions(i0, i1, queries).forEach((name, row) => {
    const cells = Array.from(weights.subarray(row * (j1 - j0), (row + 1) * (j1 - j0)), (weight) => (Number.isNaN(weight) ? "" : String(Number(weight.toPrecision(9)))));
    lines.push([quote(name), ...cells].join(","));
  });
  return new TextEncoder().encode(`${lines.join("\r\n")}\r\n`).buffer;
}

/** A leading digit keeps spreadsheets from reading a formula. */
function labelPositions(start: number, stop: number, texts: readonly string[] | null): string[] {
  return Array.from({ length: stop - start }, (_, at) => (texts ? `${start + at} ${(texts[start + at] ?? "").slice(0, MAX_TEXT_LENGTH)}` : String(start + at)));
}

const quote = (cell: string): string => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
