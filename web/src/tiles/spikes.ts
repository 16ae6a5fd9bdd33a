// Bins whose average hides a strong link: max >= 0.1 and max > 32 x mean.
//
// In: the two channels of one tile. Out: bins, the strongest first. Where a tile has very many, one stands for its neighbours too.
import { codeOf, valueOf, type Tile } from "../server/tile_codec";
import { TILE } from "../geometry/zoom_plan";

export const SPIKE_WEIGHT = 0.1;
export const SPIKE_RATIO = 32;
const LEAST_CODE = codeOf(SPIKE_WEIGHT);
const MOST = 2048;

export interface Spike {
  row: number;
  column: number;
  value: number;
}

const found = new WeakMap<Tile, { mean: Tile; spikes: Spike[] }>();

export function isSpike(mean: number, max: number): boolean {
  return max >= SPIKE_WEIGHT && max > SPIKE_RATIO * mean;
}

export function spikesOf(mean: Tile, max: Tile): Spike[] {
  const before = found.get(max);
  if (before?.mean === mean) return before.spikes;
  let spikes: Spike[] = [];
  for (let index = 0; index < max.codes.length; index++) {
    const code = max.codes[index] ?? 0;
    // Most bins are far below: leave before any floating point.
    if (code < LEAST_CODE) continue;
    const value = valueOf(code);
    if (!isSpike(valueOf(mean.codes[index] ?? 0), value)) continue;
    spikes.push({ row: Math.floor(index / max.columns), column: index % max.columns, value });
  }
  spikes.sort((one, other) => other.value - one.value);
  for (let block = 2; spikes.length > MOST; block *= 2) spikes = thinned(spikes, block);
  found.set(max, { mean, spikes });
  return spikes;
}

/** The strongest of each block. The strongest come first, so the first to claim a block keeps it. */
function thinned(spikes: readonly Spike[], block: number): Spike[] {
  const taken = new Set<number>();
  return spikes.filter(({ row, column }) => {
    const name = Math.floor(row / block) * TILE + Math.floor(column / block);
    return !taken.has(name) && taken.add(name);
  });
}
