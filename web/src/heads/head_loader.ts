/**
 * Loads small pictures, labels and scores of all heads of a trace, layer by layer.
 *
 * In: a trace and what to load. Out: what is loaded so far; calls `onChange` after each layer.
 * At most two requests run, and none after `stop`. Memory: 4 KB per head, of one trace at a time.
 */

import { readTile } from "../server/tile_codec";
import { isConnectionError } from "../server/connection";
import { describeError } from "../server/requests";
import { paths, type Channel, type LayerScores, type Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import type { PictureCache } from "../tiles/pictures";
import type { LoadedTile } from "../tiles/tile_store";
import { toScoredHeads, type ScoredHead } from "./scored_heads";

const MAX_REQUESTS = 2;
const SCORES_POLL_MILLISECONDS = 500;
/** How often to see whether the whole text is scored by now. */
const COMPLETE_POLL_MILLISECONDS = 2000;

export interface HeadLoader {
  /** By layer; null where there are none, undefined while they are loading. */
  pictures: (LoadedTile | null | undefined)[];
  scores: (LayerScores | null | undefined)[];
  /** Of all layers that were scored so far. */
  heads: readonly ScoredHead[];
  /** Why something is missing; "" otherwise. */
  problem: string;
  /** The server did not answer; nothing more is requested until `stop` is called. */
  hasStopped: boolean;
  /** Read the scores of some layers (all unless given), and first the pictures if a kind of them is wanted: the current layer first, then from one on. */
  load(meta: Meta, channel: Channel | null, from: number, current?: number, count?: number): void;
  stop(): void;
}

export function createHeadLoader(transport: Transport, onChange: () => void, cache?: PictureCache): HeadLoader {
  const running = new Set<string>();
  let stopping = new AbortController();
  let meta: Meta | null = null;
  let channelWanted: Channel | null = null;
  let order: readonly number[] = [];
  let isPictureWanted = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const loadScores = async (path: string, signal: AbortSignal): Promise<LayerScores> => {
    for (;;) {
      const scores = await transport.json<LayerScores>(path, signal);
      if (!scores.pending) return scores;
      await new Promise((resolve) => setTimeout(resolve, SCORES_POLL_MILLISECONDS));
      signal.throwIfAborted();
    }
  };
  const loadLayer = async (of: Meta, layer: number, channel: Channel | null): Promise<void> => {
    const { signal } = stopping;
    const name = `${channel}${layer}`;
    running.add(name);
    let answer: LoadedTile | LayerScores | null = null;
    try {
      answer = channel
        ? decodePictures(await transport.bytes(paths.thumbs(of.trace, layer, channel), signal))
        : await loadScores(paths.heads(of.trace, layer), signal);
    } catch (error) {
      if (signal.aborted) return;
      // The page shows a banner, and loads again when the server responds.
      if (isConnectionError(error)) {
        roster.stop();
        roster.hasStopped = true;
        return onChange();
      }
      roster.problem = describeError(error);
    }
    if (signal.aborted) return;
    if (channel) {
      roster.pictures[layer] = answer as LoadedTile | null;
      if (answer) cache?.set(of.trace, layer, answer as LoadedTile);
    }
    else {
      roster.scores[layer] = answer as LayerScores | null;
      roster.heads = roster.scores.flatMap((scores, index) => (scores ? toScoredHeads(of, index, scores) : []));
      if ((answer as LayerScores | null)?.complete === false) timer ??= setTimeout(() => void checkComplete(of, layer), COMPLETE_POLL_MILLISECONDS);
    }
    running.delete(name);
    onChange();
    startRequests();
  };
  /** Ask one layer whether the whole text is scored, and then read all layers again. */
  const checkComplete = async (of: Meta, layer: number): Promise<void> => {
    const { signal } = stopping;
    timer = undefined;
    const scores = await transport.json<LayerScores>(paths.heads(of.trace, layer), signal).catch(() => null);
    if (signal.aborted || !scores) return;
    if (scores.complete === false) timer = setTimeout(() => void checkComplete(of, layer), COMPLETE_POLL_MILLISECONDS);
    else for (const index of order) if (roster.scores[index]?.complete === false) void loadLayer(of, index, null);
  };
  const startRequests = (): void => {
    for (const channel of isPictureWanted ? [channelWanted, null] : [null])
      for (const layer of order) {
        const list = channel ? roster.pictures : roster.scores;
        if (meta && running.size < MAX_REQUESTS && list[layer] === undefined && !running.has(`${channel}${layer}`))
          void loadLayer(meta, layer, channel);
      }
  };
  const roster: HeadLoader = {
    ...{ pictures: [], scores: [], heads: [], problem: "", hasStopped: false },
    load(now, channel, from, current = from, count = now.layers.length) {
      if (roster.hasStopped) return;
      if (now !== meta) Object.assign(roster, { scores: [], heads: [], problem: "" });
      if (now !== meta || (channel && channel !== channelWanted)) {
        roster.stop();
        roster.pictures = [];
        [meta, channelWanted] = [now, channel];
      }
      isPictureWanted = channel !== null;
      order = [...new Set([current, ...now.layers.map((_, index) => (index + from) % now.layers.length)])].slice(0, count);
      startRequests();
    },
    stop() {
      stopping.abort();
      stopping = new AbortController();
      clearTimeout(timer);
      timer = undefined;
      running.clear();
      order = [];
      roster.hasStopped = false;
    },
  };
  return roster;
}

function decodePictures(body: ArrayBuffer | null): LoadedTile | null {
  const tile = body && readTile(body);
  return tile && { ...tile, hasMasked: tile.codes.includes(0) };
}
