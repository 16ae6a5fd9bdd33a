/** The steps of the tour, on the example that AttnScope ships: six heads that each do one thing. */

import type { State } from "../state";

export interface Step {
  /** A selector of the element that it points at. */
  readonly selector: string;
  readonly title: string;
  readonly text: string;
  /** The state to show on the example. */
  readonly state: Partial<State>;
}

const MAP = ".map-pair";

export const STEPS: readonly Step[] = [
  {
    selector: MAP,
    title: "Rows look at columns",
    text:
      "This is one attention head reading one sentence. Each row is a token that looks, the query. Each column is a " +
      "token that can be looked at, the key: row attends to column. Brighter is more attention, and every row adds " +
      "up to 1.",
    state: { layer: 2, head: 1 },
  },
  {
    selector: MAP,
    title: "One square, read aloud",
    text:
      "The marked square: the second “Whit” gives 95% of its attention to “field”, which came after the first “Whit”. " +
      "Click any square to read its exact weight.",
    state: { layer: 3, pinQuery: 20, pinKey: 2 },
  },
  {
    selector: MAP,
    title: "Hatched is forbidden",
    text:
      "The model reads from left to right, so no token may look at one that comes after it. Those pairs are hatched. " +
      "That is not the same as a weight of zero, which is the darkest colour.",
    state: { layer: 3 },
  },
  {
    selector: MAP,
    title: "A bright column: a sink",
    text:
      "In this head nearly all attention goes to the first token. A head that has nothing to do parks it there. " +
      "“Hide sink”, or the key k, takes that column away.",
    state: { layer: 4, pinKey: 0 },
  },
  {
    selector: MAP,
    title: "A bright diagonal: the token before",
    text: "Each token looks at the one just before it: the squares directly beside the diagonal are bright.",
    state: { layer: 2 },
  },
  {
    selector: ".head-panel",
    title: "Names for what heads do",
    text:
      "AttnScope scores each head for such patterns and names what stands out. This one does induction: at a word " +
      "that was there before, it looks at what came after it then. Below the names are the scores.",
    state: { layer: 3 },
  },
  {
    selector: ".bars .segments",
    title: "Where to go from here",
    text:
      "Text shows the same links on the text itself, Heads shows all heads at once, and Type a sentence lets a model " +
      "read your own words. Help has all keys, and this tour.",
    state: { layer: 3 },
  },
];
