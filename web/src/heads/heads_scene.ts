/** What every form of the heads view shows: heads with their labels and scores, and the state. */

import type { Box } from "../geometry/box";
import { formatTitle } from "../paint/token_text";
import type { LayerScores } from "../server/protocol";
import type { HeadId, State } from "../state";
import { passesFilters, type ScoredHead } from "./scored_heads";

export interface HeadsScene {
  readonly state: State;
  /** The scored heads by their ids, joined with a comma. */
  readonly heads: ReadonlyMap<string, ScoredHead>;
  readonly catalog: {
    readonly heads: readonly ScoredHead[];
    readonly scores: readonly (Pick<LayerScores, "measures" | "meanings"> | null | undefined)[];
  };
}

export interface HeadsActions {
  choose(id: HeadId): void;
  /** Null opens the current head. */
  open(id: HeadId | null): void;
  /** `box` is where the head is in its part. */
  hover(id: HeadId | null, box: Box | null): void;
  order(order: string): void;
  setAxes(axes: readonly [string, string]): void;
  /** What Enter does, where it does not open a map. */
  readonly enterHint?: string;
}

/** One form of the heads view: a grid, a table or a scatter plot. */
export interface HeadsPart<Scene extends HeadsScene> {
  readonly element: HTMLElement;
  readonly controls?: HTMLElement;
  update(scene: Scene): void;
}

export function getCurrentHead({ layer, head }: State): HeadId {
  return [layer, head];
}

/** Whether the chosen label or condition leaves a head out. */
export function isFaded({ state, heads }: Pick<HeadsScene, "state" | "heads">, id: HeadId): boolean {
  return !passesFilters(heads.get(id.join()), state.label, state.filter);
}

/** What a score measures, or what a label means; "" where that is not known. */
export function explain({ catalog }: Pick<HeadsScene, "catalog">, kind: "measures" | "meanings", name: string): string {
  const found = catalog.scores.map((one) => one?.[kind][name]).find((one) => one);
  return found ? formatTitle(found, 400) : "";
}
