/**
 * Highlights of ranges of text, by steps of weight.
 *
 * The browser has one list of highlights for the whole document, and several explorers may be in it: they share the
 * highlights by name, and each adds and takes away its own ranges alone.
 */

/** A weight belongs to the last of these that it reaches; below the first nothing is painted. */
export const STEPS: readonly number[] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3];

/** 1 to 8; 0 is not painted. */
export function getStep(weight: number, limits = STEPS): number {
  return limits.filter((step) => weight >= step).length;
}

/** The part of CSS.highlights this needs; tests give their own. */
export interface HighlightRegistryLike {
  get(name: string): { readonly size: number; add(range: AbstractRange): unknown; delete(range: AbstractRange): boolean } | undefined;
  set(name: string, highlight: Highlight): unknown;
  delete(name: string): boolean;
}

/** Null where the browser cannot highlight. */
export function getHighlightRegistry(): HighlightRegistry | null {
  return "highlights" in CSS ? CSS.highlights : null;
}

export class HighlightSet {
  readonly #ranges = new Map<string, readonly AbstractRange[]>();

  constructor(
    private readonly registry: HighlightRegistryLike | null,
    private readonly createHighlight: () => Highlight = () => new Highlight(),
  ) {}

  /** Mark these and no others under this name. */
  set(name: string, ranges: readonly AbstractRange[]): void {
    const full = `attnscope-${name}`;
    const { registry } = this;
    if (!registry) return;
    let shared = registry.get(full);
    if (!shared) {
      if (ranges.length === 0) return;
      const made = this.createHighlight();
      // Hovered and pinned tokens are painted over the weights.
      made.priority = /\d$/.test(name) ? 0 : 1;
      registry.set(full, made);
      shared = made;
    }
    for (const range of this.#ranges.get(name) ?? []) shared.delete(range);
    for (const range of ranges) shared.add(range);
    this.#ranges.set(name, ranges);
    if (shared.size === 0) registry.delete(full);
  }

  /** Mark ranges by their weights; the names are those of the steps, "out-1" to "out-8". */
  setByWeight(name: string, ranges: Iterable<readonly [AbstractRange, number]>, limits = STEPS): void {
    const steps: AbstractRange[][] = limits.map(() => []);
    for (const [range, weight] of ranges) steps[getStep(weight, limits) - 1]?.push(range);
    steps.forEach((found, step) => this.set(`${name}-${step + 1}`, found));
  }

  clear(): void {
    for (const name of [...this.#ranges.keys()]) this.set(name, []);
  }
}
