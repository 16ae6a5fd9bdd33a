/** What the tour shows, on the example that AttnScope brings along: six heads that each do one thing. */

import type { State } from "../state";

export interface Step {
  /** The part it points at. */
  readonly at: string;
  readonly title: string;
  readonly says: string;
  /** What of the example is shown. */
  readonly shows: Partial<State>;
}

const MAP = ".map-pair";

export const STEPS: readonly Step[] = [
  {
    at: MAP,
    title: "Rows look at columns",
    says:
      "This is one attention head reading one sentence. Each row is a token that looks, the query. Each column is a " +
      "token that can be looked at, the key: row attends to column. Brighter is more attention, and every row adds " +
      "up to 1.",
    shows: { layer: 2, head: 1 },
  },
  {
    at: MAP,
    title: "One square, read aloud",
    says:
      "The marked square: the second “Whit” gives 95% of its attention to “field”, which came after the first “Whit”. " +
      "Click any square to read its exact weight.",
    shows: { layer: 3, pinQuery: 20, pinKey: 2 },
  },
  {
    at: MAP,
    title: "Hatched is forbidden",
    says:
      "The model reads from left to right, so no token may look at one that comes after it. Those pairs are hatched. " +
      "That is not the same as a weight of zero, which is the darkest colour.",
    shows: { layer: 3 },
  },
  {
    at: MAP,
    title: "A bright column: a sink",
    says:
      "In this head nearly all attention goes to the first token. A head that has nothing to do parks it there. " +
      "“Hide sink”, or the key k, takes that column away.",
    shows: { layer: 4, pinKey: 0 },
  },
  {
    at: MAP,
    title: "A bright diagonal: the token before",
    says: "Each token looks at the one just before it: the squares directly beside the diagonal are bright.",
    shows: { layer: 2 },
  },
  {
    at: ".head-panel",
    title: "Names for what heads do",
    says:
      "AttnScope scores each head for such patterns and names what stands out. This one does induction: at a word " +
      "that was there before, it looks at what came after it then. Below the names are the scores.",
    shows: { layer: 3 },
  },
  {
    at: ".bars .segments",
    title: "Where to go from here",
    says:
      "Text shows the same links on the text itself, Heads shows all heads at once, and Type a sentence lets a model " +
      "read your own words. Help has all keys, and this tour.",
    shows: { layer: 3 },
  },
];
