/**
 * The right-hand panel: everything exact about the pinned query, the pinned key, their cell, and the head.
 *
 * In: what is shown and what is pinned. Out: panels; pins through the actions.
 * A newer request cancels the older one of its kind; responses are cached.
 */

import { readFloats } from "../server/tile_codec";
import { button, element, replaceChildren, token } from "./dom";
import { HeadPanel } from "./head_panel";
import type { HostContext } from "../host";
import { LatestRequest, ResponseCache } from "../server/requests";
import { describeCell, describeToken } from "./live_region";
import { formatCount, formatMeasure, formatOrdinal, formatPercent, formatWeight } from "../format_numbers";
import { getHeadNumber, paths, type DistanceProfile, type KeyReport, type QueryReport, type Scores, type Side, type TraceHead } from "../server/protocol";
import { computeRank, type Rank } from "./ranking";
import { PinPanel, type PinReport, type Weights } from "./pin_panel";
import type { Transport } from "../server/transport";

export interface InspectorActions {
  pin(side: Side, position: number): void;
  unpin(side: Side): void;
  follow(): void;
  back(): void;
  canGoBack(): boolean;
  getText(side: Side, position: number): string | undefined;
  announce(text: string): void;
}

interface QueryData {
  readonly report: QueryReport;
  readonly side: PinReport;
}

const SCORES_POLL_MILLISECONDS = 2000;

export class Inspector {
  readonly element: HTMLElement;
  readonly #emptyMessage: HTMLElement;
  readonly #cell = element("section", { class: "cell-panel", "aria-label": "Pinned cell", hidden: true });
  readonly #back: HTMLButtonElement;
  readonly #query: PinPanel;
  readonly #key: PinPanel;
  readonly #head: HeadPanel;
  readonly #cache: ResponseCache;
  readonly #requests = { query: new LatestRequest(), key: new LatestRequest(), cell: new LatestRequest(), scores: new LatestRequest(), profile: new LatestRequest() };
  #shown: TraceHead | null = null;
  #pins: { readonly query: number | null; readonly key: number | null } = { query: null, key: null };
  #queryData: Promise<QueryData> | null = null;
  /** Shows the cell again when token texts are loaded. */
  #showCellAgain: (() => void) | null = null;
  /** The query last reported on, for following. */
  report: QueryReport | null = null;

  constructor(
    transport: Transport,
    private readonly actions: InspectorActions,
    context: HostContext,
    /** More sections about the head. */
    more: readonly HTMLElement[] = [],
  ) {
    this.#head = new HeadPanel(context);
    context.signal.addEventListener("abort", () => this.stop());
    this.#cache = new ResponseCache(transport);
    this.#back = button("Back", () => actions.back(), { title: "Back where you followed from (b)", disabled: true });
    const follow = button("Follow", () => actions.follow(), { title: "Go to the token this one attends to most (f)" });
    this.#query = new PinPanel("query", actions, context, [follow, this.#back]);
    this.#key = new PinPanel("key", actions, context);
    this.#emptyMessage = element(
      "section",
      { class: "empty" },
      element("h3", {}, "Nothing pinned"),
      element(
        "p",
        {},
        "Click a cell of the map to see its exact weight. Click a label on the left for all that one token attends to, or on top for all that attends to it.",
      ),
      element(
        "p",
        { class: "soft" },
        "With the keyboard: . and , step through the queries, Enter pins, f follows, ? lists the rest.",
      ),
    );
    this.element = element(
      "aside",
      { class: "inspector", "aria-label": "Inspector", tabindex: 0 },
      element("h2", { class: "visually-hidden" }, "Inspector"),
      this.#cell,
      this.#emptyMessage,
      this.#query.element,
      this.#key.element,
      this.#head.element,
      ...more,
    );
    this.#showPanels();
  }

  /** Show these pins of this head; loads only what changed. */
  show(shown: TraceHead | null, pinQuery: number | null, pinKey: number | null): void {
    const headChanged = !isSameHead(this.#shown, shown);
    const queryChanged = headChanged || pinQuery !== this.#pins.query;
    const keyChanged = headChanged || pinKey !== this.#pins.key;
    this.#shown = shown;
    this.#pins = { query: pinQuery, key: pinKey };
    this.element.hidden = shown === null;
    this.#showPanels();
    if (!shown) return this.stop();
    if (headChanged) this.#loadHead(shown);
    if (queryChanged) this.#loadQuery(shown, pinQuery);
    else if (keyChanged) this.#query.refresh(pinKey);
    if (keyChanged) this.#loadKey(shown, pinKey);
    else if (queryChanged) this.#key.refresh(pinQuery);
    if (queryChanged || keyChanged) this.#loadCell(shown, pinQuery, pinKey);
    this.#back.disabled = !this.actions.canGoBack();
  }

  /** Token texts have arrived. */
  refreshNames(): void {
    this.#query.refresh(this.#pins.key);
    this.#key.refresh(this.#pins.query);
    if (!this.#cell.hidden) this.#showCellAgain?.();
  }

  stop(): void {
    for (const latest of Object.values(this.#requests)) latest.cancel();
  }

  #showPanels(): void {
    const { query, key } = this.#pins;
    this.#emptyMessage.hidden = query !== null || key !== null;
    this.#query.element.hidden = query === null;
    this.#key.element.hidden = key === null;
    this.#cell.hidden = query === null || key === null;
  }

  #loadQuery({ meta, layer, head }: TraceHead, position: number | null): void {
    this.#requests.query.cancel();
    this.#queryData = null;
    this.report = null;
    if (position === null) return;
    this.#query.showLoading(position);
    const load = async (signal: AbortSignal): Promise<QueryData> => {
      const [report, weights] = await Promise.all([
        this.#cache.json<QueryReport>(paths.query(meta.trace, layer, head, position), signal),
        this.#loadWeights(paths.row(meta.trace, layer, head, position), signal),
      ]);
      const facts = listQueryFacts(report, meta.layers[layer]?.cross ?? false);
      return { report, side: { position, facts, weights, strongest: report.strongest } };
    };
    void this.#requests.query.run(
      (signal) => (this.#queryData = load(signal)),
      ({ report, side }) => {
        this.report = report;
        this.#query.show(side, this.#pins.key);
        if (this.#pins.key === null) this.actions.announce(this.#describeQuery(report));
      },
      (message) => this.#query.showError(message),
    );
  }

  #loadKey({ meta, layer, head }: TraceHead, position: number | null): void {
    this.#requests.key.cancel();
    if (position === null) return;
    this.#key.showLoading(position);
    void this.#requests.key.run(
      (signal) =>
        Promise.all([
          this.#cache.json<KeyReport>(paths.key(meta.trace, layer, head, position), signal),
          this.#loadWeights(paths.column(meta.trace, layer, head, position), signal),
        ]),
      ([report, weights]) =>
        this.#key.show({ position, facts: listKeyFacts(report), weights, strongest: report.strongest }, this.#pins.query),
      (message) => this.#key.showError(message),
    );
  }

  #loadCell({ meta, layer, head }: TraceHead, query: number | null, key: number | null): void {
    this.#requests.cell.cancel();
    if (query === null || key === null) return;
    this.#showCellAgain = null;
    const queryData = this.#queryData;
    replaceChildren(this.#cell, element("h3", {}, "Weight"), element("p", { class: "soft" }, "reading…"));
    void this.#requests.cell.run(
      (signal) =>
        Promise.all([
          this.#cache.bytes(paths.cells(meta.trace, layer, head, query, query + 1, key, key + 1), signal),
          queryData,
        ]),
      ([body, data]) => {
        const weight = body ? (readFloats(body).values[0] ?? NaN) : NaN;
        this.#showCellAgain = () => this.#showCell(query, key, weight, data);
        this.#showCellAgain();
      },
      (message) => replaceChildren(this.#cell, element("h3", {}, "Weight"), element("p", {}, message)),
    );
  }

  #showCell(query: number, key: number, weight: number, answer: QueryData | null): void {
    const texts = { query: this.actions.getText("query", query), key: this.actions.getText("key", key) };
    const masked = Number.isNaN(weight);
    const ranked = masked || !answer ? null : computeRank(key, weight, answer.side.weights, answer.report.strongest);
    replaceChildren(
      this.#cell,
      element(
        "h3",
        {},
        token(texts.query, query),
        element("span", { class: "soft" }, " attends to "),
        token(texts.key, key),
      ),
      element("p", { class: "weight-large" }, masked ? "masked" : formatWeight(weight)),
      element(
        "p",
        { class: "soft" },
        masked ? this.#explainMasked() : describeRank(ranked, answer?.report.visible_keys),
      ),
    );
    this.actions.announce(
      describeCell({
        query,
        key,
        queryText: texts.query,
        keyText: texts.key,
        value: masked ? null : weight,
        exact: true,
        rank: ranked?.exact ? ranked.rank : undefined,
        seen: answer?.report.visible_keys,
      }),
    );
  }

  #explainMasked(): string {
    const { meta, layer } = this.#shown ?? {};
    return meta?.layers[layer ?? 0]?.zeros_masked
      ? "No weight: it is zero, or this cell is masked."
      : "Masked: this query cannot attend to this key.";
  }

  #loadHead({ meta, layer, head }: TraceHead): void {
    this.#head.setHead(layer, getHeadNumber(meta, layer, head), meta.layers[layer]?.name ?? "");
    void this.#requests.scores.run(
      (signal) => this.#loadScores(paths.scores(meta.trace, layer, head), signal),
      (scores) => this.#head.showScores(scores),
      (message) => this.#head.showScoresError(message),
    );
    this.#requests.profile.cancel();
    if (meta.layers[layer]?.cross)
      return this.#head.showProfileError("Cross-attention: queries and keys are from two texts, so there is no distance.");
    void this.#requests.profile.run(
      (signal) => this.#cache.json<DistanceProfile>(paths.profile(meta.trace, layer, head), signal),
      (profile) => this.#head.showProfile(profile),
      (message) => this.#head.showProfileError(message),
    );
  }

  /** Polls while the server is scoring, and shows that it is. */
  async #loadScores(path: string, signal: AbortSignal): Promise<Scores> {
    for (;;) {
      const scores = await this.#cache.json<Scores>(path, signal);
      if (!scores.pending) return scores;
      signal.throwIfAborted();
      this.#head.showScores(scores);
      this.#cache.forget(path);
      await new Promise((resolve) => setTimeout(resolve, SCORES_POLL_MILLISECONDS));
      signal.throwIfAborted();
    }
  }

  async #loadWeights(path: string, signal: AbortSignal): Promise<Weights> {
    const body = await this.#cache.bytes(path, signal);
    if (!body) return { values: new Float32Array(0), largest: null, stride: 1 };
    const { rows, columns, values, z } = readFloats(body);
    return {
      values: values.subarray(0, columns),
      largest: rows > 1 ? values.subarray(columns, 2 * columns) : null,
      stride: 2 ** z,
    };
  }

  #describeQuery(report: QueryReport): string {
    const [key, weight] = report.strongest[0] ?? [];
    const name = describeToken("query", report.position, this.actions.getText("query", report.position));
    if (key === undefined || weight === undefined) return `${name}: all keys are masked`;
    return `${name} attends most to ${describeToken("key", key, this.actions.getText("key", key))}, weight ${formatWeight(weight)}`;
  }
}

function isSameHead(one: TraceHead | null, other: TraceHead | null): boolean {
  return one?.meta.trace === other?.meta.trace && one?.layer === other?.layer && one?.head === other?.head;
}

function describeRank(ranked: Rank | null, seen: number | undefined): string {
  if (!ranked || seen === undefined) return "exact";
  if (!ranked.exact) return `exact; not among the ${ranked.rank - 1} strongest of ${formatCount(seen)} keys`;
  return `exact; ${formatOrdinal(ranked.rank)} of ${formatCount(seen)} visible keys`;
}

function listQueryFacts(report: QueryReport, cross: boolean): PinReport["facts"] {
  const facts = [
    {
      name: "entropy",
      value: `${formatMeasure(report.entropy)} nats`,
      meaning: "How spread out its attention is; 0 is all on one key",
    },
    {
      name: "effective keys",
      value: formatMeasure(report.effective_keys),
      meaning: "1 over the sum of squared weights: this many keys with equal weights would be as concentrated",
    },
    { name: "mean distance", value: formatMeasure(report.mean_distance), meaning: "Tokens back, weighted by attention" },
    {
      name: "first token",
      value: formatPercent(report.first_token),
      meaning: "Share on the first token, where idle heads park their attention",
    },
    { name: "visible keys", value: formatCount(report.visible_keys), meaning: "Keys that the mask allows for this query" },
  ];
  // Between two texts there is no distance.
  return facts.filter(({ name }) => !cross || name !== "mean distance");
}

function listKeyFacts(report: KeyReport): PinReport["facts"] {
  return [
    {
      name: "received",
      value: formatMeasure(report.received),
      meaning: "The sum of all weights on this key; 1 is one query's whole attention",
    },
    { name: "visible to", value: formatCount(report.visible_queries), meaning: "Queries for which the mask allows this key" },
  ];
}
