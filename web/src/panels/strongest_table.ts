/**
 * The strongest 20 links in view as a table, for screen readers and for exact numbers.
 *
 * Links of a token to itself and to the first token can be left out. Exact for few cells in view; for many, approximated from the bins of the map, and marked so.
 */

import { readFloats } from "../server/tile_codec";
import type { TokenRanges } from "../geometry/zoom_plan";
import type { WeightedSpan } from "../map/map_view";
import { button, element, replaceChildren, token } from "./dom";
import { LatestRequest } from "../server/requests";
import { formatCount, formatWeightColumn, pluralize } from "../format_numbers";
import { paths, type Layer, type Side, type TraceHead } from "../server/protocol";
import { findStrongest } from "./ranking";
import type { Transport } from "../server/transport";

export const MAX_CELLS = 65_536;
const ROWS = 20;
/** How many places are read off the picture, before some are left out. */
const CANDIDATES = 400;
const PAUSE_MILLISECONDS = 300;

export interface StrongestTableActions {
  getText(side: Side, position: number): string | undefined;
  pinCell(query: number, key: number): void;
  getView(): TokenRanges;
  findStrongest(count: number): readonly WeightedSpan[];
}

export class StrongestTable {
  readonly element: HTMLElement;
  readonly #caption = element("caption");
  readonly #body = element("tbody");
  readonly #withSelf = element("input", { type: "checkbox" });
  readonly #withFirst = element("input", { type: "checkbox" });
  #shown: TraceHead | null = null;
  readonly #request = new LatestRequest();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #spans: readonly WeightedSpan[] = [];
  #exact = false;

  constructor(
    private readonly transport: Transport,
    private readonly actions: StrongestTableActions,
    close: () => void,
  ) {
    const head = ["Query", "Key", "Weight"].map((name) =>
      element("th", { scope: "col", class: name === "Weight" ? "number" : null }, name),
    );
    this.element = element(
      "section",
      { class: "strongest-table", "aria-label": "Strongest links in view", tabindex: 0, hidden: true },
      button("Close", close, { class: "close", "aria-label": "Close the table" }),
      element("label", { class: "switch" }, this.#withSelf, "to itself"),
      " ",
      element("label", { class: "switch" }, this.#withFirst, "to the first token"),
      element("table", {}, this.#caption, element("thead", {}, element("tr", {}, ...head)), this.#body),
    );
    for (const box of [this.#withSelf, this.#withFirst]) box.addEventListener("change", () => this.#shown && this.#load(this.#shown));
  }

  get isOpen(): boolean {
    return !this.element.hidden;
  }

  setOpen(open: boolean): void {
    this.element.hidden = !open;
    if (!open) {
      this.#request.cancel();
      clearTimeout(this.#timer);
    }
  }

  /** Load again after the view moved or tiles were loaded, with a delay. */
  refresh(shown: TraceHead | null): void {
    if (!this.isOpen || !shown) return;
    clearTimeout(this.#timer);
    this.#request.cancel();
    this.#timer = setTimeout(() => this.#load(shown), PAUSE_MILLISECONDS);
  }

  refreshNames(): void {
    if (this.isOpen && this.#spans.length > 0) this.#render();
  }

  #load(shown: TraceHead): void {
    this.#shown = shown;
    const { meta, layer, head } = shown;
    const isWanted = this.#createFilter(meta.layers[layer]);
    const without = this.#describeFilter(meta.layers[layer]);
    const { query, key } = this.actions.getView();
    const cells = (query[1] - query[0]) * (key[1] - key[0]);
    if (cells <= 0) return;
    if (cells > MAX_CELLS) {
      this.#spans = this.actions.findStrongest(CANDIDATES).filter(({ query: [from, to], key: [first, stop] }) => isWanted(from, to, first, stop)).slice(0, ROWS);
      this.#exact = false;
      this.#caption.textContent =
        `Strongest ${formatCount(this.#spans.length)} places in view${without}, approximate: ${formatCount(cells)} pairs are in view, ` +
        "so these are read off the picture. Zoom in for exact weights.";
      this.#render();
      return;
    }
    this.#caption.textContent = `Reading ${pluralize(cells, "pair")}…`;
    void this.#request.run(
      (signal) => this.transport.bytes(paths.cells(meta.trace, layer, head, ...query, ...key), signal),
      (body) => {
        const links = body
          ? findStrongest(
              readFloats(body).values,
              key[1] - key[0],
              { query: query[0], key: key[0] },
              ROWS,
              (at, to) => isWanted(at, at + 1, to, to + 1),
            )
          : [];
        this.#exact = true;
        this.#spans = links.map((link) => ({
          query: [link.query, link.query + 1],
          key: [link.key, link.key + 1],
          value: link.weight,
        }));
        this.#caption.textContent = `Strongest ${pluralize(this.#spans.length, "link")} of the ${pluralize(cells, "pair")} in view${without}, exact.`;
        this.#render();
      },
      (message) => {
        this.#caption.textContent = message;
      },
    );
  }

  /** Whether half-open ranges of queries and keys hold a wanted link. Between two texts no token is the same. */
  #createFilter(layer: Layer | undefined): (from: number, to: number, first: number, stop: number) => boolean {
    const { offset, cross } = layer ?? { offset: 0, cross: false };
    const [withSelf, withFirst] = [cross || this.#withSelf.checked, this.#withFirst.checked];
    return (from, to, first, stop) => (withFirst || first > 0) && (withSelf || from + offset >= stop || to + offset <= first);
  }

  #describeFilter(layer: Layer | undefined): string {
    const left = [!layer?.cross && !this.#withSelf.checked && "to itself", !this.#withFirst.checked && "to the first token"];
    const names = left.filter((name) => name !== false);
    return names.length > 0 ? `, without those ${names.join(" and ")}` : "";
  }

  #render(): void {
    replaceChildren(
      this.#body,
      ...this.#spans.map(({ query, key, value }) =>
        element(
          "tr",
          {},
          element(
            "th",
            { scope: "row" },
            button(this.#createSpanName("query", query), () => this.actions.pinCell(query[0], key[0]), { title: "Pin this pair" }),
          ),
          element("td", {}, this.#createSpanName("key", key)),
          element("td", { class: "number" }, this.#exact ? formatWeightColumn(value) : `~ ${formatWeightColumn(value)}`),
        ),
      ),
    );
  }

  #createSpanName(side: Side, [from, to]: readonly [number, number]): HTMLElement {
    if (to - from > 1) return element("span", {}, `${formatCount(from)} to ${formatCount(to - 1)}`);
    return element("span", {}, `${formatCount(from)} `, token(this.actions.getText(side, from), from));
  }
}
