// Computes the server's responses about single tokens from all weights of a head, which a saved page of a short text stores.
//
// In: all weights, NaN where masked. Out: rows, columns and blocks as bodies; reports and links as the server's JSON.
// `tests/explorer/test_static_export.py` compares every response with the server's.
import { HEADER_BYTES, readFloats } from "./tile_codec";
import { parseRuns, type KeyReport, type Links, type QueryReport, type Side, type TokenLink } from "./protocol";

const STRONGEST_COUNT = 20;

export class DenseHead {
  readonly #values: Float32Array;
  readonly #queries: number;
  readonly #keys: number;

  constructor(private readonly body: ArrayBuffer) {
    const { rows, columns, values } = readFloats(body);
    [this.#queries, this.#keys, this.#values] = [rows, columns, values];
  }

  /** The weights of queries i0 to i1 and keys j0 to j1. */
  getBlock(i0: number, i1: number, j0: number, j1: number): ArrayBuffer {
    const result = new ArrayBuffer(HEADER_BYTES + 4 * (i1 - i0) * (j1 - j0));
    new Uint8Array(result).set(new Uint8Array(this.body, 0, HEADER_BYTES));
    const header = new DataView(result);
    [i1 - i0, j1 - j0].forEach((side, index) => header.setUint16(8 + 2 * index, side, true));
    [i0, j0].forEach((first, index) => header.setUint32(16 + 4 * index, first, true));
    const values = new Float32Array(result, HEADER_BYTES);
    for (let i = i0; i < i1; i++) values.set(this.#values.subarray(i * this.#keys + j0, i * this.#keys + j1), (i - i0) * (j1 - j0));
    return result;
  }

  getRow(query: number): ArrayBuffer {
    return this.getBlock(query, query + 1, 0, this.#keys);
  }

  /** The body has a column as one row. */
  getColumn(key: number): ArrayBuffer {
    const result = this.getBlock(0, this.#queries, key, key + 1);
    const header = new DataView(result);
    [1, this.#queries].forEach((side, index) => header.setUint16(8 + 2 * index, side, true));
    [key, 0].forEach((first, index) => header.setUint32(16 + 4 * index, first, true));
    return result;
  }

  createReport(side: Side, position: number): QueryReport | KeyReport {
    return createReport(side, position, this.#sumWeights(side, position, position + 1), this.#keys - this.#queries);
  }

  /** `own` and `others` are the first tokens of words on this side and on the other; null for links of tokens. */
  createLinks(side: Side, place: number, own: readonly number[] | null, others: readonly number[] | null, most: number): Links {
    const [start, stop] = findSpan(place, own, side === "query" ? this.#queries : this.#keys);
    return createLinks(side, [start, stop], this.#sumWeights(side, start, stop), others, most);
  }

  /** How strongly this head links some tokens to others, and the position that it is strongest at; as the server measures it. */
  measureLink({ query, key, runs }: TokenLink): { value: number; position: number } {
    const [i0, i1] = query ?? [0, this.#queries];
    const keys = runs !== undefined ? parseRuns(runs) : key && [key];
    let [total, top, position] = [0, -1, 0];
    for (let i = i0; i < i1; i++) {
      let sum = 0;
      for (const [j0, j1] of keys ?? [[0, this.#keys]])
        for (let j = j0; j < j1; j++) {
          const weight = this.#values[i * this.#keys + j] || 0;
          sum += weight;
          if (!keys && weight > top) [top, position] = [weight, j];
        }
      total += sum;
      if (!query && sum > top) [top, position] = [sum, i];
    }
    return { value: !keys ? top : query ? total / (i1 - i0) : total, position };
  }

  /** The sum of rows or columns; NaN where all of them are masked. */
  #sumWeights(side: Side, start: number, stop: number): Float64Array {
    const result = new Float64Array(side === "query" ? this.#keys : this.#queries).fill(NaN);
    for (let one = start; one < stop; one++) {
      for (let other = 0; other < result.length; other++) {
        const weight = this.#values[side === "query" ? one * this.#keys + other : other * this.#keys + one] ?? NaN;
        if (!Number.isNaN(weight)) result[other] = (result[other] || 0) + weight;
      }
    }
    return result;
  }
}

/** A query or key from its weights, NaN where masked; `offset` is the number of keys minus that of queries. */
export function createReport(side: Side, position: number, weights: Float64Array, offset: number): QueryReport | KeyReport {
  const visible = weights.filter((weight) => !Number.isNaN(weight));
  const sum = (of: (weight: number, at: number) => number): number => weights.reduce((all, weight, at) => all + (weight > 0 ? of(weight, at) : 0), 0);
  const strongest = rankWeights(weights).slice(0, STRONGEST_COUNT);
  if (side === "key") return { position, visible_queries: visible.length, received: sum((weight) => weight), strongest };
  const collision = sum((weight) => weight * weight);
  return {
    position,
    visible_keys: visible.length,
    entropy: sum((weight) => -weight * Math.log(weight)),
    effective_keys: collision > 0 ? 1 / collision : 0,
    mean_distance: sum((weight, key) => weight * (position + offset - key)),
    first_token: weights[0] || 0,
    strongest,
  };
}

/** The tokens of the word that a token belongs to, from the first tokens of all words; without words, the token itself. */
export function findSpan(place: number, words: readonly number[] | null, length: number): [start: number, stop: number] {
  if (!words) return [place, place + 1];
  const next = words.findIndex((start) => start > place);
  return [words.at(next < 0 ? -1 : next - 1) ?? 0, next < 0 ? length : (words[next] ?? length)];
}

/** The links of a span of tokens, from the sum of its rows or columns, to tokens or to words that begin at `others`. */
export function createLinks(side: Side, [start, stop]: readonly [number, number], weights: Float64Array, others: readonly number[] | null, most: number): Links {
  const starts = others ?? Array.from(weights, (_, at) => at);
  const ends = starts.map((_, index) => starts[index + 1] ?? weights.length);
  // The attention of a word is the mean over its query tokens, and the sum over its key tokens.
  const shares = starts.map((from, index) => {
    const part = weights.slice(from, ends[index]).filter((weight) => !Number.isNaN(weight));
    const tokens = side === "query" ? stop - start : (ends[index] ?? 0) - from;
    return part.length === 0 ? NaN : part.reduce((all, weight) => all + weight, 0) / tokens;
  });
  return {
    span: [start, stop],
    total: shares.reduce((all, share) => all + (share || 0), 0),
    count: shares.filter((share) => !Number.isNaN(share)).length,
    links: rankWeights(shares).slice(0, most).map(([index, weight]) => [starts[index] ?? 0, ends[index] ?? 0, Number(weight.toPrecision(9))]),
  };
}

/** Positions and weights above 0, the strongest first. */
function rankWeights(weights: ArrayLike<number>): [place: number, weight: number][] {
  return Array.from(weights, (weight, place): [number, number] => [place, weight])
    .filter(([, weight]) => weight > 0)
    .sort((one, other) => other[1] - one[1]);
}
