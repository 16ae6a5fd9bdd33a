/**
 * Which token of one text is which of another: the longest common subsequence of two lists of token texts, in as few runs as it has.
 *
 * In: two lists. Out: runs of partners, and the way from a place in one text to the place in the other.
 * Cost: the product of what differs, after the common begin and end; at most MAX_TOKENS tokens are aligned.
 */

export const MAX_TOKENS = 4096;

/** So many tokens from `one` in the first text are those from `other` in the second. */
export interface Run {
  readonly one: number;
  readonly other: number;
  readonly count: number;
}

/** Half-open. */
export type Span = readonly [from: number, to: number];

export interface Alignment {
  /** Its partner in the other text; null when it has none. */
  findPartner(position: number): number | null;
  /** Where in the other text a place with a fraction lies; between partners, in proportion. */
  mapPosition(place: number): number;
  /** Tokens without a partner. */
  readonly unmatched: readonly Span[];
  /** The same, seen from the other text. */
  invert(): Alignment;
}

export function createAlignment(runs: readonly Run[], one: number, other: number): Alignment {
  const unmatched: Span[] = [];
  // Corners of a line that climbs: through runs one for one, through gaps in proportion.
  const corners: [number, number][] = [[0, 0]];
  let last = 0;
  for (const run of [...runs, { one, other, count: 0 }]) {
    if (run.one > last) unmatched.push([last, run.one]);
    last = run.one + run.count;
    corners.push([run.one, run.other], [last, run.other + run.count]);
  }
  return {
    unmatched,
    findPartner(position) {
      const run = runs.findLast((found) => found.one <= position);
      return run && position < run.one + run.count ? run.other + position - run.one : null;
    },
    mapPosition(place) {
      const next = Math.max(1, corners.findIndex(([from]) => from > place));
      const [[from, begin], [to, end]] = [corners[next - 1] ?? [0, 0], corners[next] ?? [one, other]];
      return place >= one ? other : begin + ((place - from) * (end - begin)) / (to - from);
    },
    invert: () =>
      createAlignment(
        runs.map((run) => ({ one: run.other, other: run.one, count: run.count })),
        other,
        one,
      ),
  };
}

/** Position for position, as far as both go. */
export function alignByPosition(one: number, other: number): Alignment {
  return createAlignment([{ one: 0, other: 0, count: Math.min(one, other) }], one, other);
}

/** The runs of a longest common subsequence. */
export function findCommonRuns(one: readonly string[], other: readonly string[]): Run[] {
  const shorter = Math.min(one.length, other.length);
  let [before, after] = [0, 0];
  while (before < shorter && one[before] === other[before]) before++;
  while (after < shorter - before && one.at(-1 - after) === other.at(-1 - after)) after++;
  const runs: Run[] = [];
  const push = (run: Run): void => {
    const last = runs.at(-1);
    if (last && last.one + last.count === run.one && last.other + last.count === run.other)
      runs[runs.length - 1] = { ...last, count: last.count + run.count };
    else if (run.count > 0) runs.push(run);
  };
  push({ one: 0, other: 0, count: before });
  const numbers = new Map<string, number>();
  const toNumbers = (texts: readonly string[]): Uint32Array =>
    Uint32Array.from(texts.slice(before, texts.length - after), (text) => {
      numbers.set(text, numbers.get(text) ?? numbers.size);
      return numbers.get(text) ?? 0;
    });
  for (const [here, there] of findPairs(toNumbers(one), toNumbers(other)))
    push({ one: before + here, other: before + there, count: 1 });
  push({ one: one.length - after, other: other.length - after, count: after });
  return runs;
}

/** What a partner counts; that the tokens after them are partners as well decides among equals. */
const PARTNER_VALUE = 8192;
const MATCH = 2;
const CONTINUES = 4;

/** Pairs of a longest common subsequence, first to last; of several, one of the fewest runs. */
function findPairs(one: Uint32Array, other: Uint32Array): [number, number][] {
  const width = other.length + 1;
  // At i * width + j: the edit at this position, and whether it continues a run.
  const steps = new Uint8Array(one.length * width);
  // The best that can follow, and the best that begins with a pair there: of this row, and of the one below.
  let [best, below] = [new Uint32Array(width), new Uint32Array(width)];
  let [run, runBelow] = [new Uint32Array(width), new Uint32Array(width)];
  for (let i = one.length - 1; i >= 0; i--) {
    [best, below, run, runBelow] = [below, best, runBelow, run];
    for (let j = other.length - 1; j >= 0; j--) {
      const skipped = Math.max(below[j] as number, best[j + 1] as number);
      let step = (below[j] as number) >= skipped ? 0 : 1;
      run[j] = 0;
      if (one[i] === other[j]) {
        const goesOn = (runBelow[j + 1] as number) >= (below[j + 1] as number) && (runBelow[j + 1] as number) > 0;
        const value = PARTNER_VALUE + (goesOn ? (runBelow[j + 1] as number) + 1 : (below[j + 1] as number));
        run[j] = value;
        step = (value >= skipped ? MATCH : step) + (goesOn ? CONTINUES : 0);
      }
      best[j] = Math.max(skipped, run[j] as number);
      steps[i * width + j] = step;
    }
  }
  const pairs: [number, number][] = [];
  for (let i = 0, j = 0, going = false; i < one.length && j < other.length; ) {
    const step = steps[i * width + j] as number;
    const choice = going ? MATCH : step % CONTINUES;
    if (choice === MATCH) {
      going = step >= CONTINUES;
      pairs.push([i++, j++]);
    } else if (choice === 0) i++;
    else j++;
  }
  return pairs;
}
