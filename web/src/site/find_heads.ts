// Which heads link some tokens to others: from stored links of single tokens, or from the weights of the pairs.
//
// In: ranges of queries, of keys, or of both. Out: the server's response. Heads that were not published have no value.
import type { HeadLinks, LayerLinks, Meta } from "../server/protocol";
import { ResponseError } from "../server/transport";
import type { ArrayReader } from "./array_reader";
import type { LayerIndex } from "./manifest";
import type { OpenHead } from "./head_reader";

type Ends = readonly [start: number, stop: number];

export async function findHeads(
  meta: Meta,
  parameters: URLSearchParams,
  openLayer: (layer: number) => Promise<LayerIndex | null>,
  openHead: (layer: number, head: number) => Promise<OpenHead>,
  arrays: ArrayReader,
  signal?: AbortSignal,
): Promise<HeadLinks> {
  const readEnds = (letter: string): Ends | null => (parameters.has(`${letter}0`) ? [Number(parameters.get(`${letter}0`)), Number(parameters.get(`${letter}1`))] : null);
  const [query, key] = [readEnds("q"), readEnds("k")];
  const [first, stop] = readEnds("l") ?? [0, meta.layers.length];
  const layers = meta.layers.slice(first, stop).map(async ({ heads, queries, keys }, offset): Promise<LayerLinks | null> => {
    const layer = first + offset;
    if ((query?.[1] ?? 0) > queries || (key?.[1] ?? 0) > keys) return null;
    const index = await openLayer(layer);
    const published = index ? Object.keys(index.heads).map(Number).sort((one, other) => one - other) : [];
    const found = new Map<number, [value: number, position: number | null]>();
    if (query && key) {
      await Promise.all(published.map(async (head) => found.set(head, [await measurePair(await openHead(layer, head), query, key, signal), null])));
    } else if (index) {
      const values = query ? await findTopKeys(index, arrays, published.length, query) : await findReceived(index, arrays, published.length, key ?? [0, 1]);
      published.forEach((head, at) => found.set(head, values[at] ?? [NaN, null]));
    }
    const ordered = Array.from({ length: heads }, (_, head) => found.get(head));
    const positions = ordered.map((one) => one?.[1] ?? null);
    return {
      values: ordered.map((one) => (one === undefined || Number.isNaN(one[0]) ? null : Number(one[0].toPrecision(9)))),
      positions: published.every((head) => positions[head] !== null) && !(query && key) ? positions.map((position) => position ?? 0) : null,
    };
  });
  const found = await Promise.all(layers);
  if (found.every((layer) => layer === null)) throw new ResponseError("No layer has these positions.", 400);
  return { measure: !key ? "top_weight" : query ? "weight" : "received", first_layer: first, layers: found };
}

/** The weight on the keys together, the mean over the queries. */
async function measurePair({ reader }: OpenHead, [i0, i1]: Ends, [j0, j1]: Ends, signal?: AbortSignal): Promise<number> {
  const weights = await reader.readWeights(i0, i1, j0, j1, signal);
  return weights.reduce((sum, weight) => sum + (weight || 0), 0) / (i1 - i0);
}

/** The largest weight of the queries in each head, and its key. */
async function findTopKeys({ layer }: LayerIndex, arrays: ArrayReader, heads: number, [start, stop]: Ends): Promise<[number, number][]> {
  const rows = await readLinks(layer.file, layer.arrays["query links"], arrays, start, stop);
  return Array.from({ length: heads }, (_, head) => {
    let top: [number, number] = [-1, 0];
    for (let row = 0; row < stop - start; row++) {
      const at = 2 * (row * heads + head);
      if ((rows.weights[at] ?? 0) > top[0]) top = [rows.weights[at] ?? 0, rows.positions[at + 1] ?? 0];
    }
    return top;
  });
}

/** What the keys receive in each head, and the query that gives most of it to a single key; for several keys that is not stored. */
async function findReceived({ layer }: LayerIndex, arrays: ArrayReader, heads: number, [start, stop]: Ends): Promise<[number, number | null][]> {
  const rows = await readLinks(layer.file, layer.arrays["key links"], arrays, start, stop);
  return Array.from({ length: heads }, (_, head) => {
    let sum = 0;
    for (let row = 0; row < stop - start; row++) sum += rows.weights[2 * (row * heads + head)] ?? 0;
    return [sum, stop - start === 1 ? (rows.positions[2 * head + 1] ?? 0) : null];
  });
}

/** The same numbers as weights and as positions: they take turns. */
async function readLinks(file: string, array: LayerIndex["layer"]["arrays"][string] | undefined, arrays: ArrayReader, start: number, stop: number): Promise<{ weights: Float32Array; positions: Uint32Array }> {
  if (!array) throw new Error(`${file} has no links.`);
  const positions = await arrays.readIntegers(file, array, start, stop);
  return { positions, weights: new Float32Array(positions.buffer) };
}
