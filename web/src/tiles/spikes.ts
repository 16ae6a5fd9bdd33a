// Bins whose average hides a strong link: max >= 0.1 and max > 32 x mean.
//
// In: the two channels of one tile, and the side of a block of bins. Out: the strongest such bin of each block, the strongest first.
import { decodeWeight, encodeWeight, type Tile } from "../server/tile_codec";
import { TILE_SIZE } from "../geometry/zoom_plan";

const SPIKE_WEIGHT = 0.1;
const SPIKE_RATIO = 32;
const MIN_CODE = encodeWeight(SPIKE_WEIGHT);
const MAX_SPIKES = 2048;
/** Marks are at least half as far apart, so that what is below them can be seen. */
const BLOCK_PIXELS = 16;

export interface Spike {
  row: number;
  column: number;
  value: number;
}

const cache = new WeakMap<Tile, { mean: Tile; block: number; spikes: Spike[] }>();

export function isSpike(mean: number, max: number): boolean {
  return max >= SPIKE_WEIGHT && max > SPIKE_RATIO * mean;
}

/** The bins along the side of a block that has one mark: a power of two, so that blocks stay in place when the map moves. */
export function chooseBlock(binPixels: number): number {
  return Math.min(TILE_SIZE, 2 ** Math.max(0, Math.floor(Math.log2(BLOCK_PIXELS / binPixels))));
}

export function findSpikes(mean: Tile, max: Tile, block = 1): Spike[] {
  const before = cache.get(max);
  if (before?.mean === mean && before.block === block) return before.spikes;
  let spikes: Spike[] = [];
  for (let index = 0; index < max.codes.length; index++) {
    const code = max.codes[index] ?? 0;
    // Most bins are far below, so check the code first.
    if (code < MIN_CODE) continue;
    const value = decodeWeight(code);
    if (!isSpike(decodeWeight(mean.codes[index] ?? 0), value)) continue;
    spikes.push({ row: Math.floor(index / max.columns), column: index % max.columns, value });
  }
  spikes.sort((one, other) => other.value - one.value);
  if (block > 1) spikes = thinSpikes(spikes, block);
  for (let larger = 2 * block; spikes.length > MAX_SPIKES; larger *= 2) spikes = thinSpikes(spikes, larger);
  cache.set(max, { mean, block, spikes });
  return spikes;
}

/** The strongest spike of each block; spikes are sorted by strength. */
function thinSpikes(spikes: readonly Spike[], block: number): Spike[] {
  const taken = new Set<number>();
  return spikes.filter(({ row, column }) => {
    const name = Math.floor(row / block) * TILE_SIZE + Math.floor(column / block);
    return !taken.has(name) && taken.add(name);
  });
}
