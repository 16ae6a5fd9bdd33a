/**
 * A pinned token in the inspector: as a query (what it attends to) or as a key (what attends to it).
 *
 * Shows facts, the row or column of weights as bars, and the strongest links.
 */

import { Chart } from "./chart";
import { button, element, replaceChildren, token } from "./dom";
import { formatCount, formatWeight, formatWeightColumn, pluralize } from "../format_numbers";
import type { HostContext } from "../host";
import type { Side } from "../server/protocol";

/** A row or a column of weights: every weight, or pooled in bins of `stride`. */
export interface Weights {
  readonly values: Float32Array;
  /** The largest weight of each bin; null when every weight is there. */
  readonly largest: Float32Array | null;
  readonly stride: number;
}

export interface Fact {
  readonly name: string;
  readonly value: string;
  readonly meaning: string;
}

export interface PinReport {
  readonly position: number;
  readonly facts: readonly Fact[];
  readonly weights: Weights;
  readonly strongest: readonly (readonly [number, number])[];
}

export interface PinActions {
  pin(side: Side, position: number): void;
  unpin(side: Side): void;
  getText(side: Side, position: number): string | undefined;
}

const LABELS = {
  query: { title: "Query", other: "key", others: "keys", listHeading: "Strongest keys", bars: "What this token attends to" },
  key: {
    title: "Key",
    other: "query",
    others: "queries",
    listHeading: "Strongest queries",
    bars: "Attention from each query",
  },
} as const;

const VISIBLE_ROWS = 8;

export interface LinkRow {
  readonly name: HTMLElement;
  readonly place: string;
  readonly weight: number;
  /** The weight with the longest bar. */
  readonly most: number;
  readonly marked: boolean;
  onClick(): void;
}

/** A line of a list of links: a button to go there, and a bar as long as the weight. */
export function createLinkRow({ name, place, weight, most, marked, onClick }: LinkRow): HTMLLIElement {
  const bar = element("span", { class: "weight-bar", "aria-hidden": "true" });
  bar.style.width = `${Math.max(1, (weight / most) * 100)}%`;
  const row = button(name, onClick, { "aria-current": marked ? "true" : null });
  row.append(
    element("span", { class: "position soft" }, place),
    element("span", { class: "weight" }, formatWeightColumn(weight)),
    bar,
  );
  return element("li", {}, row);
}

export class PinPanel {
  readonly element: HTMLElement;
  readonly #heading = element("h3");
  readonly #status = element("p", { class: "soft" });
  readonly #facts = element("dl", { class: "facts" });
  readonly #caption = element("p", { class: "caption soft" });
  readonly #list = element("ol", { class: "strongest" });
  readonly #more = button("", () => this.#showAll(true), { class: "more", hidden: true });
  readonly #content: HTMLElement;
  readonly #chart: Chart;
  #report: PinReport | null = null;
  #position = 0;

  constructor(
    private readonly side: Side,
    private readonly actions: PinActions,
    context: HostContext,
    extra: readonly HTMLElement[] = [],
  ) {
    const words = LABELS[side];
    this.#chart = new Chart(56, context, {
      onHover: (bar) => this.#describe(bar),
      onPick: (bar) => this.#pinBar(bar),
    });
    this.#content = element(
      "div",
      {},
      this.#facts,
      element("h4", {}, words.bars),
      this.#chart.element,
      this.#caption,
      element("h4", {}, words.listHeading),
      this.#list,
      this.#more,
    );
    this.element = element(
      "section",
      { class: `side side-${side}`, "aria-label": `Pinned ${side}` },
      element(
        "div",
        { class: "side-head" },
        this.#heading,
        ...extra,
        button("×", () => actions.unpin(side), {
          class: "step",
          "aria-label": `Unpin the ${side}`,
          title: "Unpin (Esc)",
        }),
      ),
      this.#status,
      this.#content,
    );
  }

  get #otherSide(): Side {
    return this.side === "query" ? "key" : "query";
  }

  showLoading(position: number): void {
    this.#report = null;
    this.#setHeading(position);
    this.#status.textContent = "reading…";
    this.#status.hidden = false;
    this.#content.classList.add("stale");
  }

  showError(message: string): void {
    this.#status.textContent = message;
    this.#status.hidden = false;
    this.#content.hidden = true;
  }

  show(report: PinReport, markedOther: number | null): void {
    this.#report = report;
    this.#setHeading(report.position);
    this.#status.hidden = true;
    this.#content.hidden = false;
    this.#content.classList.remove("stale");
    replaceChildren(
      this.#facts,
      ...report.facts.map(({ name, value, meaning }) =>
        element("div", { title: meaning }, element("dt", {}, name), element("dd", {}, value)),
      ),
    );
    this.#drawBars(markedOther);
    this.#listStrongest(markedOther);
  }

  /** Show the same report again: token texts are loaded, or the other pin moved. */
  refresh(markedOther: number | null): void {
    if (this.#report) this.show(this.#report, markedOther);
    else this.#setHeading(this.#position);
  }

  #setHeading(position: number): void {
    this.#position = position;
    replaceChildren(
      this.#heading,
      `${LABELS[this.side].title} ${formatCount(position)} `,
      token(this.actions.getText(this.side, position), position),
    );
  }

  #drawBars(markedOther: number | null): void {
    const report = this.#report;
    if (!report) return;
    const { values, largest, stride } = report.weights;
    const { others } = LABELS[this.side];
    this.#chart.show({
      values: largest ?? values,
      colour: this.side,
      marked: markedOther === null ? null : Math.floor(markedOther / stride),
      label: `${LABELS[this.side].bars}: ${pluralize(values.length, "bar")}, ${
        largest ? `each the largest of ${stride} ${others}` : "exact weights"
      }, see the list below for the strongest`,
    });
    this.#describe(null);
  }

  #describe(bar: number | null): void {
    const report = this.#report;
    if (!report) return;
    const { values, largest, stride } = report.weights;
    const { others } = LABELS[this.side];
    if (bar === null) {
      this.#caption.textContent = largest
        ? `Pooled: a bar is the largest of ${stride} ${others}.`
        : `Exact: one bar for each of ${pluralize(values.length, LABELS[this.side].other, others)}.`;
      return;
    }
    const from = bar * stride;
    const value = values[bar] ?? NaN;
    if (!largest) {
      replaceChildren(
        this.#caption,
        `${formatCount(from)} `,
        token(this.actions.getText(this.#otherSide, from), from),
        ` ${Number.isNaN(value) ? "masked" : formatWeight(value)}`,
      );
      return;
    }
    const top = largest[bar] ?? NaN;
    const spread = `from ${formatCount(from)} on: `;
    this.#caption.textContent = Number.isNaN(value)
      ? `${spread}masked`
      : `${spread}mean ${formatWeight(value)}, largest ${formatWeight(top)}`;
  }

  #pinBar(bar: number): void {
    if (!this.#report) return;
    const { stride } = this.#report.weights;
    // A pooled bar does not know which of its tokens is the strong one, unless the list does.
    const inside = this.#report.strongest.find(([position]) => Math.floor(position / stride) === bar);
    this.actions.pin(this.#otherSide, inside?.[0] ?? bar * stride);
  }

  #listStrongest(markedOther: number | null): void {
    const report = this.#report;
    if (!report) return;
    const most = report.strongest[0]?.[1] ?? 1;
    if (report.strongest.length === 0) {
      replaceChildren(this.#list, element("li", { class: "soft" }, "None: the mask allows nothing here."));
      return;
    }
    replaceChildren(
      this.#list,
      ...report.strongest.map(([position, weight]) =>
        createLinkRow({
          name: token(this.actions.getText(this.#otherSide, position), position),
          place: formatCount(position),
          ...{ weight, most },
          marked: position === markedOther,
          onClick: () => this.actions.pin(this.#otherSide, position),
        }),
      ),
    );
    this.#showAll(this.#list.classList.contains("all"));
  }

  /** Show the first rows or all of them. */
  #showAll(all: boolean): void {
    const rows = [...this.#list.children];
    this.#list.classList.toggle("all", all);
    rows.forEach((row, index) => row.toggleAttribute("hidden", !all && index >= VISIBLE_ROWS));
    this.#more.hidden = all || rows.length <= VISIBLE_ROWS;
    this.#more.textContent = `${rows.length - VISIBLE_ROWS} more`;
  }
}
