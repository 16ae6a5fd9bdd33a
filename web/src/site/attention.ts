// Attention weights of a block of one head, from its queries, keys and log-sum-exp: exp(score - lse), NaN where masked.
//
// In: rows of queries and keys in their recorded precision. Products are summed in double precision. Out: weights, or a tile as the
// server encodes it. `tests/explorer/test_static_site.py` compares both with the server. Does not know: files. Memory: a tile, four rows.
import { encodeWeight, packCodes } from "../server/tile_codec";
import type { Channel } from "../server/protocol";
import type { Region, ScoreRule } from "./manifest";

/** Queries [i0, i1) and keys [j0, j1) of a head. */
export interface Block {
  readonly i0: number;
  readonly i1: number;
  readonly j0: number;
  readonly j1: number;
  /** How to compute the weights; or the weights of these rows and columns. */
  readonly source: { readonly rule: ScoreRule; readonly query: Float32Array; readonly key: Float32Array; readonly lse: Float32Array } | { readonly weights: Float32Array };
}

export interface TilePlace {
  readonly z: number;
  readonly y: number;
  readonly x: number;
  readonly stride: number;
  readonly channel: Channel;
}

/** Rows that are computed together: a key is loaded once for all of them. */
const ROWS = 4;

/** All weights of a block, (queries, keys). */
export function computeWeights(block: Block): Float32Array {
  if ("weights" in block.source) return block.source.weights;
  const [rows, columns] = [block.i1 - block.i0, block.j1 - block.j0];
  const result = new Float32Array(rows * columns);
  const some = new Float64Array(ROWS * columns);
  for (let row = 0; row < rows; row += ROWS) {
    const count = Math.min(ROWS, rows - row);
    fillRows(block, row, count, some);
    result.set(some.subarray(0, count * columns), row * columns);
  }
  return result;
}

/** The weights of a block, pooled into a tile of bins of `stride` x `stride` cells; null if all of it is masked. */
export function computeTile(block: Block, { z, y, x, stride, channel }: TilePlace): ArrayBuffer | null {
  const [rows, columns] = [block.i1 - block.i0, block.j1 - block.j0];
  const [down, across] = [Math.ceil(rows / stride), Math.ceil(columns / stride)];
  const [total, largest, cells] = [new Float64Array(down * across), new Float64Array(down * across), new Uint32Array(down * across)];
  const some = new Float64Array(ROWS * columns);
  const level = Math.log2(stride);
  let visible = 0;
  for (let row = 0; row < rows; row += ROWS) {
    const count = Math.min(ROWS, rows - row);
    fillRows(block, row, count, some);
    for (let at = 0; at < count; at++) {
      const band = ((row + at) >> level) * across;
      for (let column = 0, index = at * columns; column < columns; column++, index++) {
        const weight = some[index]!;
        if (weight !== weight) continue;
        const bin = band + (column >> level);
        total[bin]! += weight;
        cells[bin]!++;
        if (weight > largest[bin]!) largest[bin] = weight;
        visible++;
      }
    }
  }
  if (visible === 0) return null;
  const values = channel === "mean" ? total.map((sum, bin) => sum / Math.max(1, cells[bin]!)) : largest;
  const codes = Uint8Array.from(values, (value, bin) => encodeWeight(cells[bin] === 0 ? null : value));
  return packCodes(codes, values, { channel: channel === "mean" ? 0 : 1, causalCut: visible < rows * columns, exact: stride === 1, rows: down, columns: across, z, y, x });
}

/** Write the weights of rows [row, row + count) of a block to `out`, (count, keys); NaN where masked. */
function fillRows({ source, i0, j0, j1 }: Block, row: number, count: number, out: Float64Array): void {
  const columns = j1 - j0;
  if ("weights" in source) {
    out.set(source.weights.subarray(row * columns, (row + count) * columns));
    return;
  }
  const { rule, query, key, lse } = source;
  out.fill(NaN);
  const ranges = Array.from({ length: count }, (_, at) => findAllowed(rule.regions, i0 + row + at, j0, j1));
  const first = Math.min(...ranges.flatMap((some) => some.map(([start]) => start)));
  const last = Math.max(...ranges.flatMap((some) => some.map(([, stop]) => stop)));
  if (!(first < last)) return;
  const products = getProducts(ROWS * columns);
  multiply(query, row, count, key, first - j0, last - j0, columns, products);
  for (let at = 0; at < count; at++) {
    const sum = lse[row + at]!;
    const position = i0 + row + at;
    for (const [start, stop] of ranges[at]!) {
      for (let index = at * columns + start - j0, end = at * columns + stop - j0, place = start; index < end; index++, place++) {
        const score = rule.scale * products[index]!;
        out[index] = Math.exp((rule.steps.length === 0 ? score : changeScore(rule, score, position, place)) - sum);
      }
    }
  }
}

let products = new Float64Array(0);

/** Scratch space, kept between calls. */
function getProducts(length: number): Float64Array {
  if (products.length < length) products = new Float64Array(length);
  return products;
}

/** The score after its modifiers, in their order. */
export function changeScore({ steps }: Pick<ScoreRule, "steps">, score: number, query: number, key: number): number {
  for (const step of steps) {
    if (step.kind === "softcap") score = Math.tanh(score / step.cap) * step.cap;
    else if (step.kind === "temperature") score /= step.value;
    else score -= step.slope * Math.abs(key - query - step.offset);
  }
  return score;
}

/** The columns of [j0, j1) that a row may attend to, as intervals. */
export function findAllowed(regions: readonly Region[], row: number, j0: number, j1: number): [start: number, stop: number][] {
  const found: [number, number][] = [];
  for (const [top, bottom, left, right, lowest, highest] of regions) {
    if (row < top || row >= bottom) continue;
    const start = Math.max(left, row + lowest, j0);
    const stop = Math.min(right, row + highest + 1, j1);
    if (start < stop) found.push([start, stop]);
  }
  return found;
}

/** q.k of `count` rows, at most four, and columns [first, last), into `out`, (count, columns). */
function multiply(query: Float32Array, row: number, count: number, key: Float32Array, first: number, last: number, columns: number, out: Float64Array): void {
  const dim = key.length / columns;
  // Missing rows repeat the last one, and are not written. Plain variables: the compiler keeps them in registers.
  const q0 = row * dim;
  const q1 = (row + Math.min(1, count - 1)) * dim;
  const q2 = (row + Math.min(2, count - 1)) * dim;
  const q3 = (row + Math.min(3, count - 1)) * dim;
  for (let column = first; column < last; column += 2) {
    const k0 = column * dim;
    const k1 = Math.min(column + 1, columns - 1) * dim;
    let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
    for (let d = 0; d < dim; d++) {
      const x = key[k0 + d]!;
      const y = key[k1 + d]!;
      const w0 = query[q0 + d]!;
      const w1 = query[q1 + d]!;
      const w2 = query[q2 + d]!;
      const w3 = query[q3 + d]!;
      a0 += w0 * x;
      b0 += w0 * y;
      a1 += w1 * x;
      b1 += w1 * y;
      a2 += w2 * x;
      b2 += w2 * y;
      a3 += w3 * x;
      b3 += w3 * y;
    }
    out[column] = a0;
    if (count > 1) out[columns + column] = a1;
    if (count > 2) out[2 * columns + column] = a2;
    if (count > 3) out[3 * columns + column] = a3;
    if (column + 1 === last) break;
    out[column + 1] = b0;
    if (count > 1) out[columns + column + 1] = b1;
    if (count > 2) out[2 * columns + column + 1] = b2;
    if (count > 3) out[3 * columns + column + 1] = b3;
  }
}
