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
    title: "Rows attend to columns",
    text:
      "This is the attention pattern of one head on one sentence. Each row is a query token, each column a key " +
      "token: the row attends to the column. Brighter is more attention, and every row sums to 1.",
    state: { layer: 3 },
  },
  {
    selector: MAP,
    title: "One attention weight",
    text:
      "The marked square: the second “Whit” gives 95% of its attention to “field”, which came after the first “Whit”. " +
      "Click any square to read its exact weight.",
    state: { layer: 3, pinQuery: 20, pinKey: 2 },
  },
  {
    selector: MAP,
    title: "Hatched is masked",
    text:
      "With a causal mask, no token attends to a later one. Those pairs are hatched. " +
      "That is not the same as a weight of zero, which is the darkest colour.",
    state: { layer: 3 },
  },
  {
    selector: MAP,
    title: "A bright column: a sink",
    text:
      "In this head nearly all attention goes to the first token. Such a first token is called an attention sink. " +
      "The key k hides that column.",
    state: { layer: 4, pinKey: 0 },
  },
  {
    selector: MAP,
    title: "A bright diagonal: the previous token",
    text: "Each token attends to the one just before it: the squares next to the diagonal are bright.",
    state: { layer: 2 },
  },
  {
    selector: ".head-panel",
    title: "Labels of heads",
    text:
      "AttnScope scores each head for such patterns and labels what stands out. This is an induction head: at a " +
      "repeated token, it attends to what followed the earlier copy. Below the labels are the scores.",
    state: { layer: 3 },
  },
  {
    selector: MAP,
    title: "Now try it",
    text:
      "Click the row of a name that came before, such as the second “Whit”, and read the sentence above the map. The key ] goes to " +
      "the next head with that link. The Ask box finds words, heads and links; Help lists all keys, and has this tour.",
    state: { layer: 3, pinQuery: 20 },
  },
];
