/**
 * The right-hand panel: everything exact about the pinned query, the pinned key, their cell, and the head.
 *
 * In: what is shown and what is pinned. Out: panels; pins through the actions.
 * A newer question cancels the older one of its kind; answers are kept for a while, so going back is at once.
 */

import { readFloats } from "../server/tile_codec";
import { button, element, replaceChildren, token } from "./dom";
import { HeadPanel } from "./head_panel";
import type { Surroundings } from "../host";
import { Answers, Latest, told } from "../server/requests";
import { named, spokenCell } from "./live_region";
import { counted, measured, ordinal, percent, plain } from "../format_numbers";
import { headNumber, paths, type KeyReport, type Meta, type Profile, type QueryReport, type Scores, type Side } from "../server/protocol";
import { rankOf, type Ranked } from "./ranking";
import { SidePanel, type SideReport, type Weights } from "./pin_panel";
import { aborted, type Transport } from "../server/transport";

export interface Shown {
  readonly meta: Meta;
  readonly layer: number;
  readonly head: number;
}

export interface InspectorActions {
  pin(side: Side, position: number): void;
  unpin(side: Side): void;
  follow(): void;
  back(): void;
  canGoBack(): boolean;
  text(side: Side, position: number): string | undefined;
  say(text: string): void;
}

interface QueryAnswer {
  readonly report: QueryReport;
  readonly side: SideReport;
}

const ASK_SCORES_AGAIN = 2000;

export class Inspector {
  readonly element: HTMLElement;
  readonly #empty: HTMLElement;
  readonly #cell = element("section", { class: "cell-panel", "aria-label": "Pinned cell", hidden: true });
  readonly #back: HTMLButtonElement;
  readonly #query: SidePanel;
  readonly #key: SidePanel;
  readonly #head: HeadPanel;
  readonly #answers: Answers;
  readonly #asking = { query: new Latest(), key: new Latest(), cell: new Latest(), head: new Latest() };
  #shown: Shown | null = null;
  #pins: { readonly query: number | null; readonly key: number | null } = { query: null, key: null };
  #queryAnswer: Promise<QueryAnswer> | null = null;
  /** Shows the cell again, once its tokens have texts. */
  #nameCell: (() => void) | null = null;
  /** The query last reported on, for following. */
  report: QueryReport | null = null;

  constructor(
    transport: Transport,
    private readonly actions: InspectorActions,
    around: Surroundings,
    /** What else is told of the head. */
    more: readonly HTMLElement[] = [],
  ) {
    this.#head = new HeadPanel(around);
    around.signal.addEventListener("abort", () => this.stop());
    this.#answers = new Answers(transport);
    this.#back = button("Back", () => actions.back(), { title: "Back where you followed from (b)", disabled: true });
    const follow = button("Follow", () => actions.follow(), { title: "Go to the token this one looks at most (f)" });
    this.#query = new SidePanel("query", actions, around, [follow, this.#back]);
    this.#key = new SidePanel("key", actions, around);
    this.#empty = element(
      "section",
      { class: "empty" },
      element("h3", {}, "Nothing pinned"),
      element(
        "p",
        {},
        "Click a cell of the map to see its exact weight. Click a label on the left for all that one token looks at, or on top for all that look at it.",
      ),
      element(
        "p",
        { class: "soft" },
        "With the keyboard: . and , walk through the queries, Enter pins, f follows, ? lists the rest.",
      ),
    );
    this.element = element(
      "aside",
      { class: "inspector", "aria-label": "Inspector", tabindex: 0 },
      element("h2", { class: "visually-hidden" }, "Inspector"),
      this.#cell,
      this.#empty,
      this.#query.element,
      this.#key.element,
      this.#head.element,
      ...more,
    );
    this.#showPanels();
  }

  /** Show these pins of this head; asks only for what changed. */
  show(shown: Shown | null, pinQuery: number | null, pinKey: number | null): void {
    const headChanged = !sameHead(this.#shown, shown);
    const queryChanged = headChanged || pinQuery !== this.#pins.query;
    const keyChanged = headChanged || pinKey !== this.#pins.key;
    this.#shown = shown;
    this.#pins = { query: pinQuery, key: pinKey };
    this.element.hidden = shown === null;
    this.#showPanels();
    if (!shown) return this.stop();
    if (headChanged) void this.#askHead(shown);
    if (queryChanged) void this.#askQuery(shown, pinQuery);
    else if (keyChanged) this.#query.refresh(pinKey);
    if (keyChanged) void this.#askKey(shown, pinKey);
    else if (queryChanged) this.#key.refresh(pinQuery);
    if (queryChanged || keyChanged) void this.#askCell(shown, pinQuery, pinKey);
    this.#back.disabled = !this.actions.canGoBack();
  }

  /** Token texts have arrived. */
  refreshNames(): void {
    this.#query.refresh(this.#pins.key);
    this.#key.refresh(this.#pins.query);
    if (!this.#cell.hidden) this.#nameCell?.();
  }

  stop(): void {
    for (const latest of Object.values(this.#asking)) latest.stop();
  }

  #showPanels(): void {
    const { query, key } = this.#pins;
    this.#empty.hidden = query !== null || key !== null;
    this.#query.element.hidden = query === null;
    this.#key.element.hidden = key === null;
    this.#cell.hidden = query === null || key === null;
  }

  async #askQuery({ meta, layer, head }: Shown, position: number | null): Promise<void> {
    const signal = this.#asking.query.begin();
    this.#queryAnswer = null;
    this.report = null;
    if (position === null) return;
    this.#query.waiting(position);
    const answer = Promise.all([
      this.#answers.json<QueryReport>(paths.query(meta.trace, layer, head, position), signal),
      this.#weights(paths.row(meta.trace, layer, head, position), signal),
    ]).then(([report, weights]): QueryAnswer => ({
      report,
      side: {
        position,
        facts: queryFacts(report, meta.layers[layer]?.cross ?? false),
        weights,
        strongest: report.strongest,
      },
    }));
    this.#queryAnswer = answer;
    try {
      const { report, side } = await answer;
      if (signal.aborted) return;
      this.report = report;
      this.#query.show(side, this.#pins.key);
      if (this.#pins.key === null) this.actions.say(this.#spokenQuery(report));
    } catch (error) {
      if (!aborted(error)) this.#query.failed(told(error));
    }
  }

  async #askKey({ meta, layer, head }: Shown, position: number | null): Promise<void> {
    const signal = this.#asking.key.begin();
    if (position === null) return;
    this.#key.waiting(position);
    try {
      const [report, weights] = await Promise.all([
        this.#answers.json<KeyReport>(paths.key(meta.trace, layer, head, position), signal),
        this.#weights(paths.column(meta.trace, layer, head, position), signal),
      ]);
      if (signal.aborted) return;
      this.#key.show({ position, facts: keyFacts(report), weights, strongest: report.strongest }, this.#pins.query);
    } catch (error) {
      if (!aborted(error)) this.#key.failed(told(error));
    }
  }

  async #askCell({ meta, layer, head }: Shown, query: number | null, key: number | null): Promise<void> {
    const signal = this.#asking.cell.begin();
    if (query === null || key === null) return;
    this.#nameCell = null;
    const waiting = this.#queryAnswer;
    replaceChildren(this.#cell, element("h3", {}, "Weight"), element("p", { class: "soft" }, "reading…"));
    try {
      const [body, answer] = await Promise.all([
        this.#answers.bytes(paths.cells(meta.trace, layer, head, query, query + 1, key, key + 1), signal),
        waiting,
      ]);
      if (signal.aborted) return;
      const weight = body ? (readFloats(body).values[0] ?? NaN) : NaN;
      this.#nameCell = () => this.#showCell(query, key, weight, answer);
      this.#nameCell();
    } catch (error) {
      if (!aborted(error)) replaceChildren(this.#cell, element("h3", {}, "Weight"), element("p", {}, told(error)));
    }
  }

  #showCell(query: number, key: number, weight: number, answer: QueryAnswer | null): void {
    const texts = { query: this.actions.text("query", query), key: this.actions.text("key", key) };
    const masked = Number.isNaN(weight);
    const ranked = masked || !answer ? null : rankOf(key, weight, answer.side.weights, answer.report.strongest);
    replaceChildren(
      this.#cell,
      element(
        "h3",
        {},
        token(texts.query, query),
        element("span", { class: "soft" }, " looks at "),
        token(texts.key, key),
      ),
      element("p", { class: "weight-large" }, masked ? "masked" : plain(weight)),
      element(
        "p",
        { class: "soft" },
        masked ? this.#whyHidden() : ranking(ranked, answer?.report.seen),
      ),
    );
    this.actions.say(
      spokenCell({
        query,
        key,
        queryText: texts.query,
        keyText: texts.key,
        value: masked ? null : weight,
        exact: true,
        rank: ranked?.exact ? ranked.rank : undefined,
        seen: answer?.report.seen,
      }),
    );
  }

  #whyHidden(): string {
    const { meta, layer } = this.#shown ?? {};
    return meta?.layers[layer ?? 0]?.zeros_hidden
      ? "No weight: it is zero, or the mask does not let this query look there."
      : "The mask does not let this query look there.";
  }

  async #askHead({ meta, layer, head }: Shown): Promise<void> {
    const signal = this.#asking.head.begin();
    this.#head.name(layer, headNumber(meta, layer, head), meta.layers[layer]?.name ?? "");
    const scores = this.#askScores(paths.scores(meta.trace, layer, head), signal);
    const profile = this.#askProfile({ meta, layer, head }, signal);
    await Promise.all([scores, profile]);
  }

  async #askProfile({ meta, layer, head }: Shown, signal: AbortSignal): Promise<void> {
    if (meta.layers[layer]?.cross)
      return this.#head.profileFailed("Queries and keys are of two texts: there is no distance.");
    try {
      const profile = await this.#answers.json<Profile>(paths.profile(meta.trace, layer, head), signal);
      if (!signal.aborted) this.#head.showProfile(profile);
    } catch (error) {
      if (!aborted(error)) this.#head.profileFailed(told(error));
    }
  }

  async #askScores(path: string, signal: AbortSignal): Promise<void> {
    try {
      for (;;) {
        const scores = await this.#answers.json<Scores>(path, signal);
        if (signal.aborted) return;
        this.#head.showScores(scores);
        if (!scores.pending) return;
        this.#answers.forget(path);
        await new Promise((resolve) => setTimeout(resolve, ASK_SCORES_AGAIN));
        if (signal.aborted) return;
      }
    } catch (error) {
      if (!aborted(error)) this.#head.scoresFailed(told(error));
    }
  }

  async #weights(path: string, signal: AbortSignal): Promise<Weights> {
    const body = await this.#answers.bytes(path, signal);
    if (!body) return { values: new Float32Array(0), largest: null, stride: 1 };
    const { rows, columns, values, z } = readFloats(body);
    return {
      values: values.subarray(0, columns),
      largest: rows > 1 ? values.subarray(columns, 2 * columns) : null,
      stride: 2 ** z,
    };
  }

  #spokenQuery(report: QueryReport): string {
    const [key, weight] = report.strongest[0] ?? [];
    const name = named("query", report.position, this.actions.text("query", report.position));
    if (key === undefined || weight === undefined) return `${name}: may look at nothing`;
    return `${name} looks most at ${named("key", key, this.actions.text("key", key))}, weight ${plain(weight)}`;
  }
}

function sameHead(one: Shown | null, other: Shown | null): boolean {
  return one?.meta.trace === other?.meta.trace && one?.layer === other?.layer && one?.head === other?.head;
}

function ranking(ranked: Ranked | null, seen: number | undefined): string {
  if (!ranked || seen === undefined) return "exact";
  if (!ranked.exact) return `exact; not among the ${ranked.rank - 1} strongest of ${counted(seen)} keys`;
  return `exact; ${ordinal(ranked.rank)} of ${counted(seen)} keys this query may see`;
}

function queryFacts(report: QueryReport, cross: boolean): SideReport["facts"] {
  const facts = [
    {
      name: "entropy",
      value: `${measured(report.entropy)} nats`,
      meaning: "How spread out its attention is; 0 is all on one key",
    },
    {
      name: "effective keys",
      value: measured(report.effective),
      meaning: "1 over the sum of the squared weights: so many keys, looked at equally, would be as concentrated",
    },
    { name: "mean distance", value: measured(report.distance), meaning: "Tokens back, weighted by attention" },
    {
      name: "first token",
      value: percent(report.first_token),
      meaning: "Share on the first token, where idle heads park their attention",
    },
    { name: "keys seen", value: counted(report.seen), meaning: "Keys the mask lets this query look at" },
  ];
  // Between two texts there is no distance.
  return facts.filter(({ name }) => !cross || name !== "mean distance");
}

function keyFacts(report: KeyReport): SideReport["facts"] {
  return [
    {
      name: "received",
      value: measured(report.received),
      meaning: "The sum of all weights on this key; 1 is one query's whole attention",
    },
    { name: "audience", value: counted(report.audience), meaning: "Queries the mask lets look at this key" },
  ];
}
