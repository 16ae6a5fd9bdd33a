// The transport of a published site: stored responses from archives, and the others computed from queries and keys.
//
// In: the manifest and the archives of the site. Out: a transport whose responses are those of the server. Requests that need a model
// fail with a message. Memory: the indexes of the layers that were opened, the texts, and what the readers keep.
import { TILE_SIZE, ZoomPlan } from "../geometry/zoom_plan";
import { createLinks, createReport, findSpan } from "../server/dense_head";
import { findText } from "../server/file_transport";
import type { BlockFormat, Channel, LayerScores, Links, Scores, Side } from "../server/protocol";
import { packFloats } from "../server/tile_codec";
import { ResponseError, type Transport } from "../server/transport";
import { ArrayReader } from "./array_reader";
import { explainWeight } from "./explain_weight";
import { findHeads } from "./find_heads";
import { HeadReader, type OpenHead } from "./head_reader";
import type { ArchiveIndex, LayerIndex, Manifest, TraceDescription } from "./manifest";
import { decompress, type RangeReader } from "./range_reader";
import { createCsv, createNpy } from "./weight_files";
import type { WorkerPool } from "./worker_pool";

/** Of a row or column; longer ones are pooled. */
const MAX_BINS = 4096;

const NOT_FOUND = "Not found.";
const NO_HEAD = "This head was not published. Open the trace itself with AttnScope for it.";
const NO_PREDICTIONS = "This site was published without predictions of the model.";
const NO_MODEL = "This is a published site, in which no model runs. Open the trace itself with AttnScope for that.";

export function createSiteTransport(manifest: Manifest, reader: RangeReader, workers: WorkerPool): Transport {
  const layers = new Map<string, Promise<LayerIndex>>();
  const texts = new Map<string, Promise<unknown>>();
  const arrays = new ArrayReader(reader);

  function getTrace(id: string): TraceDescription {
    const found = manifest.traces[id];
    if (!found) throw new ResponseError(`The trace ${id.slice(0, 12)} is not on this site.`, 404);
    return found;
  }

  function openLayer(trace: string, layer: number): Promise<LayerIndex> {
    const name = `${trace}/L${String(layer).padStart(3, "0")}/index.json`;
    let found = layers.get(name);
    if (!found) {
      found = reader.readFile(name).then((bytes) => parseJson(bytes) as LayerIndex);
      layers.set(name, found);
      found.catch(() => layers.delete(name));
    }
    return found;
  }

  async function openHead(traceId: string, layer: number, head: number): Promise<OpenHead> {
    const trace = getTrace(traceId);
    const about = trace.meta.layers[layer];
    const index = manifest.files[`${traceId}/L${String(layer).padStart(3, "0")}/index.json`] && (await openLayer(traceId, layer));
    const found = index?.heads[head];
    if (!about || !index || !found) throw new ResponseError(NO_HEAD, 404);
    return { trace, layer: about, index: found, reader: new HeadReader(found, index.layer, about, arrays, workers) };
  }

  async function readStored(index: ArchiveIndex, name: string, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    const range = index.responses[name];
    if (range === undefined) throw new ResponseError(NOT_FOUND, 404);
    return range && decompress(await reader.read(index.file, range, signal));
  }

  /** The texts, sections or words of a side of a layer, loaded once. */
  async function readAxis<T>(traceId: string, layer: number, kind: "texts" | "sections" | "words", side: string | null): Promise<T> {
    const trace = getTrace(traceId);
    const number = trace.axes[layer]?.[side === "key" ? 1 : 0] ?? null;
    if (number === null) throw new ResponseError("The token texts of this layer are not known.", 404);
    const name = `${traceId} ${kind} ${number}`;
    let found = texts.get(name);
    if (!found) {
      found = readStored(trace.index, `${kind} ${number}`).then((bytes) => parseJson(bytes));
      texts.set(name, found);
      found.catch(() => texts.delete(name));
    }
    return (await found) as T;
  }

  async function answerLayer(trace: string, layer: number, kind: string, parameters: URLSearchParams, signal?: AbortSignal): Promise<unknown> {
    const side = parameters.get("side");
    const [from, to] = [Number(parameters.get("from")), Number(parameters.get("to"))];
    if (kind === "tokens" || kind === "text") return (await readAxis<string[]>(trace, layer, "texts", side)).slice(from, to);
    if (kind === "sections" || kind === "words") return readAxis(trace, layer, kind, side);
    if (kind === "find") return findText(await readAxis<string[]>(trace, layer, "texts", side), parameters);
    if (!getTrace(trace).meta.layers[layer] || !manifest.files[`${trace}/L${String(layer).padStart(3, "0")}/index.json`]) throw new ResponseError(NO_HEAD, 404);
    const index = await openLayer(trace, layer);
    if (kind === "heads") return parseJson(await readStored(index.layer, "heads", signal));
    return readStored(index.layer, `${kind}?ch=${parameters.get("ch") ?? "mean"}`, signal);
  }

  /** Labels and scores of a head, from those of its layer. */
  async function readScores(trace: string, layer: number, head: number, signal?: AbortSignal): Promise<Scores> {
    const { heads, meanings } = (await answerLayer(trace, layer, "heads", new URLSearchParams(), signal)) as LayerScores;
    const { labels = [], scores = {} } = heads[head] ?? {};
    return { labels: labels.map((name) => ({ name, meaning: meanings[name] ?? "" })), scores, pending: false };
  }

  async function answerLinks({ reader, layer }: OpenHead, trace: string, at: number, side: Side, place: number, parameters: URLSearchParams, signal?: AbortSignal): Promise<Links> {
    const loadWords = (of: Side): Promise<number[]> | null => (parameters.get("unit") === "word" ? readAxis<number[]>(trace, at, "words", of) : null);
    const [own, others] = [await loadWords(side), await loadWords(side === "query" ? "key" : "query")];
    const span = findSpan(place, own, side === "query" ? layer.queries : layer.keys);
    return createLinks(side, span, await reader.sumWeights(side, ...span, signal), others, Number(parameters.get("most") ?? 2000));
  }

  async function readTexts(trace: string, layer: number, side: Side): Promise<string[] | null> {
    return getTrace(trace).axes[layer]?.[side === "key" ? 1 : 0] === null ? null : readAxis<string[]>(trace, layer, "texts", side);
  }

  async function answerBlock({ reader }: OpenHead, trace: string, layer: number, parameters: URLSearchParams, signal?: AbortSignal): Promise<ArrayBuffer> {
    const [i0, i1, j0, j1] = readEnds(parameters);
    const weights = await reader.readWeights(i0, i1, j0, j1, signal);
    if ((parameters.get("as") as BlockFormat) === "npy") return createNpy(weights, i1 - i0, j1 - j0);
    return createCsv(weights, [i0, i1], [j0, j1], await readTexts(trace, layer, "query"), await readTexts(trace, layer, "key"));
  }

  async function answerHead(path: string, signal?: AbortSignal): Promise<unknown> {
    const [, trace = "", layerText, headText, rest = "", query = ""] = /^([^/]+)\/(\d+)\/(\d+)\/([^?]+)(?:\?(.*))?$/.exec(path) ?? [];
    const [layer, number] = [Number(layerText), Number(headText)];
    const parameters = new URLSearchParams(query);
    const head = await openHead(trace, layer, number);
    const [kind = "", ...places] = rest.split("/");
    if (kind === "preview") return null; // stored tiles need none
    if (kind === "status") return { coarse: "ready", progress: 1 };
    if (kind === "scores") return readScores(trace, layer, number, signal);
    if (kind === "profile") return parseJson(await readStored(head.index, kind, signal));
    if (rest in head.index.responses) return readStored(head.index, rest, signal);
    if (kind === "cells") return createCells(head, readEnds(parameters), signal);
    if (kind === "block") return answerBlock(head, trace, layer, parameters, signal);
    if (kind === "row" || kind === "col") return createLine(head, kind === "row" ? "query" : "key", Number(places[0]), signal);
    if (kind === "marginal") return createMarginal(head, places[0] ?? "", Number(places[1]), Number(places[2]));
    if (kind === "links") return answerLinks(head, trace, layer, places[0] as Side, Number(places[1]), parameters, signal);
    if (kind === "why") return explainWeight(head, Number(parameters.get("query")), Number(parameters.get("key")));
    if (kind === "query" || kind === "key") {
      const place = Number(places[0]);
      return createReport(kind, place, await head.reader.sumWeights(kind, place, place + 1, signal), head.layer.keys - head.layer.queries);
    }
    if (/^\d+\/\d+\/\d+$/.test(rest)) return answerTile(head, rest, (parameters.get("ch") ?? "mean") as Channel, signal);
    throw new ResponseError(NOT_FOUND, 404);
  }

  function answerTile({ index, layer, reader }: OpenHead, rest: string, channel: Channel, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    const name = `${rest}?ch=${channel}`;
    if (name in index.responses) return readStored(index, name, signal);
    const [z = 0, y = 0, x = 0] = rest.split("/").map(Number);
    return reader.readTile(z, y, x, new ZoomPlan(layer.queries, layer.keys).getStride(z), channel, signal);
  }

  async function answer(path: string, signal?: AbortSignal): Promise<unknown> {
    if (path === "session") return manifest.session;
    const [, trace = "", rest = "", query = ""] = /^([^/]+)\/([^?]+)(?:\?(.*))?$/.exec(path) ?? [];
    const parameters = new URLSearchParams(query);
    if (rest === "meta") return getTrace(trace).meta;
    if (rest === "opening") return getTrace(trace).opening;
    if (rest === "predictions") return { pending: false, problem: NO_PREDICTIONS, tokens: [] };
    if (rest === "find_heads") return findHeads(getTrace(trace).meta, parameters, (layer) => openPublishedLayer(trace, layer), (layer, head) => openHead(trace, layer, head), arrays, signal);
    const [, layer, kind = ""] = /^(\d+)\/([a-z]+)$/.exec(rest) ?? [];
    return layer === undefined ? answerHead(path, signal) : answerLayer(trace, Number(layer), kind, parameters, signal);
  }

  /** The index of a layer; null if none of its heads was published. */
  async function openPublishedLayer(trace: string, layer: number): Promise<LayerIndex | null> {
    return manifest.files[`${trace}/L${String(layer).padStart(3, "0")}/index.json`] ? openLayer(trace, layer) : null;
  }

  return {
    json: async <T>(path: string, signal?: AbortSignal) => (await answer(path, signal)) as T,
    bytes: async (path, signal) => (await answer(path, signal)) as ArrayBuffer | null,
    post: () => Promise.reject(new ResponseError(NO_MODEL, 409)),
    async *stream() {
      throw new ResponseError(NO_MODEL, 409);
    },
  };
}

const parseJson = (bytes: ArrayBuffer | null): unknown => JSON.parse(new TextDecoder().decode(bytes ?? new ArrayBuffer(0)));

function readEnds(parameters: URLSearchParams): [i0: number, i1: number, j0: number, j1: number] {
  return ["i0", "i1", "j0", "j1"].map((name) => Number(parameters.get(name))) as [number, number, number, number];
}

async function createCells({ reader }: OpenHead, [i0, i1, j0, j1]: readonly [number, number, number, number], signal?: AbortSignal): Promise<ArrayBuffer> {
  const weights = await reader.readWeights(i0, i1, j0, j1, signal);
  return packFloats(weights, { exact: true, rows: i1 - i0, columns: j1 - j0, z: 0, y: i0, x: j0 });
}

/** A row or column: exact, or the mean and the maximum of 2^level cells each. */
async function createLine({ reader }: OpenHead, side: Side, place: number, signal?: AbortSignal): Promise<ArrayBuffer> {
  const weights = await reader.sumWeights(side, place, place + 1, signal);
  let level = 0;
  while (weights.length > MAX_BINS << level) level++;
  const header = { z: level, y: place, x: 0, exact: level === 0 };
  if (level === 0) return packFloats(Float32Array.from(weights), { ...header, rows: 1, columns: weights.length });
  const bins = Math.ceil(weights.length / 2 ** level);
  const values = new Float32Array(2 * bins);
  for (let bin = 0; bin < bins; bin++) {
    const some = weights.subarray(bin << level, (bin + 1) << level).filter((weight) => !Number.isNaN(weight));
    values[bin] = some.length === 0 ? NaN : some.reduce((sum, weight) => sum + weight, 0) / some.length;
    values[bins + bin] = some.length === 0 ? NaN : Math.max(...some);
  }
  return packFloats(values, { ...header, rows: 2, columns: bins });
}

/** The mean and the maximum of a number per query or key, over the bins of a tile along an axis. */
async function createMarginal({ reader, layer }: OpenHead, kind: string, z: number, block: number): Promise<ArrayBuffer> {
  const stride = new ZoomPlan(layer.queries, layer.keys).getStride(z);
  const start = block * TILE_SIZE * stride;
  const stop = Math.min(start + TILE_SIZE * stride, kind === "received" ? layer.keys : layer.queries);
  const values = await reader.readArray(kind, start, stop);
  const bins = Math.ceil(values.length / stride);
  const result = new Float32Array(2 * bins);
  for (let bin = 0; bin < bins; bin++) {
    const some = values.subarray(bin * stride, (bin + 1) * stride);
    result[bin] = some.reduce((sum, value) => sum + value, 0) / some.length;
    result[bins + bin] = some.reduce((most, value) => Math.max(most, value), -Infinity);
  }
  return packFloats(result, { exact: stride === 1, rows: 2, columns: bins, z, y: block, x: 0 });
}
