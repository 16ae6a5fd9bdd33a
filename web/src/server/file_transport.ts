// The transport of a saved page: the server's responses are stored in the file itself.
//
// In: the text of the page's data, `{index, parts}`, each a base64 of gzip. The index is `{path: [part, start, length] | null}`; null is
// a response without content. Out: a transport. Other requests fail with a message; nothing leaves the file.
// Searches, and requests about single tokens of a short text or links of its heads, are computed here: there are too many to store.
// Memory: the text, and the last few parts, decompressed.
import { LruCache } from "../lru_cache";
import { DenseHead } from "./dense_head";
import { parseRuns, paths, type FindResult, type HeadLinks, type Meta, type Predictions, type Side, type TokenLink } from "./protocol";
import { readFloats } from "./tile_codec";
import { ResponseError, type Transport } from "./transport";

type StoredRange = readonly [part: number, start: number, length: number] | null;

const MAX_OPEN_PARTS = 24;
const NO_SCORES = "This page was saved without queries and keys, so it cannot show how a weight is computed. Open the trace itself with AttnScope for that.";
const NO_PREDICTIONS = "This page was saved without predictions of the model.";
const NO_MODEL = "This page was saved to a file, in which no model runs. Open the trace itself with AttnScope for that.";

async function decompress(text: string): Promise<ArrayBuffer> {
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let index = 0; index < plain.length; index++) bytes[index] = plain.charCodeAt(index);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const parseJson = (bytes: ArrayBuffer): unknown => JSON.parse(new TextDecoder().decode(bytes));

export function createFileTransport(data: string): Transport {
  const { index: packed, parts } = JSON.parse(data) as { index: string; parts: string[] };
  /** Empty until the index is decompressed. */
  let storedPaths: ReadonlyMap<string, StoredRange> = new Map();
  const index = decompress(packed).then((bytes) => (storedPaths = new Map(Object.entries(parseJson(bytes) as Record<string, StoredRange>))));
  const openParts = new LruCache<number, Promise<ArrayBuffer>>(MAX_OPEN_PARTS);

  const openPart = (number: number): Promise<ArrayBuffer> => {
    const found = openParts.get(number) ?? decompress(parts[number] ?? "");
    openParts.set(number, found);
    return found;
  };

  async function readStored(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    const place = (await index).get(path);
    signal?.throwIfAborted();
    if (place === undefined) throw new ResponseError("This file does not hold that: it was saved with as much as fits into it. Open the trace with AttnScope for the rest.", 404);
    if (place === null) return null;
    const [number, start, length] = place;
    const bytes = await openPart(number);
    signal?.throwIfAborted();
    return bytes.slice(start, start + length);
  }

  /** All weights of a head; undefined where the file does not store them. */
  async function loadDenseHead(head: string, signal?: AbortSignal): Promise<DenseHead | undefined> {
    const name = `${head}/cells`;
    const body = (await index).has(name) ? await readStored(name, signal) : null;
    return body ? new DenseHead(body) : undefined;
  }

  /** All weights of a head, or those of the one query that is requested; undefined where the file stores neither. */
  async function loadLinkWeights(head: string, link: TokenLink, signal?: AbortSignal): Promise<[DenseHead, TokenLink] | undefined> {
    const weights = await loadDenseHead(head, signal);
    if (weights) return [weights, link];
    const { query } = link;
    const row = query && query[1] - query[0] === 1 ? `${head}/row/${query[0]}` : "";
    const body = (await index).has(row) ? await readStored(row, signal) : null;
    // A row of a long text is stored as the mean and the largest weight of several keys each.
    return body && readFloats(body).rows === 1 ? [new DenseHead(body), { ...link, query: [0, 1] }] : undefined;
  }

  /** The values of the heads that the file stores; null for the others. */
  async function findHeads(trace: string, parameters: URLSearchParams, signal?: AbortSignal): Promise<HeadLinks> {
    const ends = (letter: string): [number, number] | null =>
      parameters.has(`${letter}0`) ? [Number(parameters.get(`${letter}0`)), Number(parameters.get(`${letter}1`))] : null;
    const runs = parameters.get("runs") ?? undefined;
    const link = { query: ends("q"), key: ends("k"), runs };
    const last = runs === undefined ? (link.key?.[1] ?? 0) : (parseRuns(runs).at(-1)?.[1] ?? 0);
    const meta = await json<Meta>(paths.meta(trace), signal);
    const [first, stop] = ends("l") ?? [0, meta.layers.length];
    const layers: HeadLinks["layers"] = [];
    for (const [offset, { heads, queries, keys }] of meta.layers.slice(first, stop).entries()) {
      if ((link.query?.[1] ?? 0) > queries || last > keys) {
        layers.push(null);
        continue;
      }
      const found = await Promise.all(
        Array.from({ length: heads }, async (_, head) => {
          const [weights, own] = (await loadLinkWeights(`${trace}/${first + offset}/${head}`, link, signal)) ?? [];
          return weights && own ? weights.measureLink(own) : { value: null, position: 0 };
        }),
      );
      layers.push({ values: found.map(({ value }) => value), positions: link.query && last > 0 ? null : found.map(({ position }) => position) });
    }
    return { measure: last === 0 ? "top_weight" : link.query ? "weight" : "received", first_layer: first, layers };
  }

  /** All predictions are stored as one response. */
  async function slicePredictions(path: string, parameters: URLSearchParams, signal?: AbortSignal): Promise<Predictions> {
    if (!(await index).has(path)) return { pending: false, problem: NO_PREDICTIONS, tokens: [] };
    const all = parseJson((await readStored(path, signal)) ?? new ArrayBuffer(0)) as Predictions;
    return { ...all, tokens: all.tokens.slice(Number(parameters.get("from")), Number(parameters.get("to"))) };
  }

  /** The texts of all tokens of one side of a layer. */
  async function readTexts(layer: string, parameters: URLSearchParams, signal?: AbortSignal): Promise<string[]> {
    const beginning = `${layer}/text?side=${parameters.get("side") ?? ""}&from=0&`;
    const known = [...(await index).keys()].find((one) => one.startsWith(beginning));
    return json<string[]>(known ?? beginning, signal);
  }

  async function json<T>(path: string, signal?: AbortSignal): Promise<T> {
    const [place = "", query = ""] = path.split("?");
    const parameters = new URLSearchParams(query);
    const [, trace = "", kind] = /^([^/]+)\/(?:.+\/)?(find_heads|predictions|why)$/.exec(place) ?? [];
    if (kind === "find_heads") return (await findHeads(trace, parameters, signal)) as T;
    if (kind === "predictions") return (await slicePredictions(place, parameters, signal)) as T;
    if (kind === "why") throw new ResponseError(NO_SCORES, 409);
    const [, texts = "", part] = /^(.+)\/(find|tokens)$/.exec(place) ?? [];
    if (part === "find") return findText(await readTexts(texts, parameters, signal), parameters) as T;
    // Blocks of tokens are stored; other ranges are cut from the whole text.
    if (part === "tokens" && !(await index).has(path))
      return (await readTexts(texts, parameters, signal)).slice(Number(parameters.get("from")), Number(parameters.get("to"))) as T;
    const token = /^(.+\/\d+)(\/\d+)\/(links\/)?(query|key)\/(\d+)$/.exec(place);
    const [, layer = "", head = "", links, side, at] = token ?? [];
    const weights = token ? await loadDenseHead(layer + head, signal) : undefined;
    if (!weights) return parseJson((await readStored(path, signal)) ?? new ArrayBuffer(0)) as T;
    if (!links) return weights.createReport(side as Side, Number(at)) as T;
    const loadWordStarts = (of: string): Promise<number[]> | null => (parameters.get("unit") === "word" ? json<number[]>(`${layer}/words?side=${of}`, signal) : null);
    const both = [await loadWordStarts(side as Side), await loadWordStarts(side === "query" ? "key" : "query")] as const;
    return weights.createLinks(side as Side, Number(at), ...both, Number(parameters.get("most"))) as T;
  }

  return {
    json,
    hasResponse: (path) => storedPaths.has(path),
    async bytes(path, signal) {
      // Tiles of a file need no preview.
      if (path.includes("/preview?")) return null;
      const [, head = "", kind, at = "", range = ""] = /^(.+)\/(row|col|cells)(?:\/(\d+)|\?(.*))$/.exec(path) ?? [];
      const weights = kind ? await loadDenseHead(head, signal) : undefined;
      if (!weights) return readStored(path, signal);
      if (kind === "cells") return weights.getBlock(...(range.match(/\d+(?=&|$)/g)?.map(Number) as [number, number, number, number]));
      return kind === "row" ? weights.getRow(Number(at)) : weights.getColumn(Number(at));
    },
    post: () => Promise.reject(new ResponseError(NO_MODEL, 409)),
    async *stream() {
      throw new ResponseError(NO_MODEL, 409);
    },
  };
}

/** The next token at which the text begins, as the server finds it. */
export function findText(texts: readonly string[], parameters: URLSearchParams): FindResult {
  const wanted = (parameters.get("text") ?? "").trim().toLowerCase();
  const after = Number(parameters.get("after"));
  let whole = "";
  const starts = texts.map((text) => {
    const start = whole.length;
    whole += text.toLowerCase();
    return start;
  });
  const places: number[] = [];
  for (let at = whole.indexOf(wanted), token = 0; at >= 0 && wanted !== ""; at = whole.indexOf(wanted, at + 1)) {
    while ((starts[token + 1] ?? Infinity) <= at) token++;
    if (places.at(-1) !== token) places.push(token);
  }
  const index = parameters.get("backward") === "1" ? places.findLastIndex((place) => place <= after) : places.findIndex((place) => place >= after);
  return { position: places[index] ?? null, count: places.length, index };
}
