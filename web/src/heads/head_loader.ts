/**
 * What is known of all heads of a trace: small pictures, labels and scores, read layer by layer.
 *
 * In: a trace and what is wanted of it. Out: what has come so far, by layer; `changed` when more has.
 * At most two requests run, and none after `stop`. Memory: 4 KB a head, of one trace at a time.
 */

import { readTile } from "../server/tile_codec";
import { unanswered } from "../server/connection";
import { told } from "../server/requests";
import { paths, type Channel, type LayerScores, type Meta } from "../server/protocol";
import type { Transport } from "../server/transport";
import type { HeldTile } from "../tiles/tile_store";
import { headsOf, type Head } from "./scored_heads";

const IN_FLIGHT = 2;
const ASK_AGAIN = 500;

export interface Roster {
  /** By layer; null where there are none, undefined where they have not come. */
  pictures: (HeldTile | null | undefined)[];
  scores: (LayerScores | null | undefined)[];
  /** Of all layers that were scored so far. */
  heads: readonly Head[];
  /** Why something is missing, if anything was refused. */
  problem: string;
  /** Read the scores of all layers, and first the pictures if a kind of them is wanted, from one layer on. */
  want(meta: Meta, channel: Channel | null, from: number): void;
  stop(): void;
}

export function createRoster(transport: Transport, changed: () => void): Roster {
  const running = new Set<string>();
  let stopping = new AbortController();
  let meta: Meta | null = null;
  let kind: Channel | null = null;
  let order: readonly number[] = [];
  let pictured = false;

  const scored = async (path: string, signal: AbortSignal): Promise<LayerScores> => {
    for (;;) {
      const scores = await transport.json<LayerScores>(path, signal);
      if (!scores.pending) return scores;
      await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN));
      signal.throwIfAborted();
    }
  };
  const load = async (of: Meta, layer: number, channel: Channel | null): Promise<void> => {
    const { signal } = stopping;
    const name = `${channel}${layer}`;
    running.add(name);
    let answer: HeldTile | LayerScores | null = null;
    try {
      answer = channel
        ? pictureOf(await transport.bytes(paths.thumbs(of.trace, layer, channel), signal))
        : await scored(paths.heads(of.trace, layer), signal);
    } catch (error) {
      if (signal.aborted) return;
      // The page says so, and asks anew when somebody answers.
      if (unanswered(error)) return roster.stop();
      roster.problem = told(error);
    }
    if (signal.aborted) return;
    if (channel) roster.pictures[layer] = answer as HeldTile | null;
    else {
      const scores = (roster.scores[layer] = answer as LayerScores | null);
      if (scores) roster.heads = [...roster.heads, ...headsOf(of, layer, scores)];
    }
    running.delete(name);
    changed();
    pump();
  };
  const pump = (): void => {
    for (const channel of pictured ? [kind, null] : [null])
      for (const layer of order) {
        const list = channel ? roster.pictures : roster.scores;
        if (meta && running.size < IN_FLIGHT && list[layer] === undefined && !running.has(`${channel}${layer}`))
          void load(meta, layer, channel);
      }
  };
  const roster: Roster = {
    ...{ pictures: [], scores: [], heads: [], problem: "" },
    want(now, channel, from) {
      if (now !== meta) Object.assign(roster, { scores: [], heads: [], problem: "" });
      if (now !== meta || (channel && channel !== kind)) {
        roster.stop();
        roster.pictures = [];
        [meta, kind] = [now, channel];
      }
      pictured = channel !== null;
      order = now.layers.map((_, index) => (index + from) % now.layers.length);
      pump();
    },
    stop() {
      stopping.abort();
      stopping = new AbortController();
      running.clear();
      order = [];
    },
  };
  return roster;
}

function pictureOf(body: ArrayBuffer | null): HeldTile | null {
  const tile = body && readTile(body);
  return tile && { ...tile, holes: tile.codes.includes(0) };
}
