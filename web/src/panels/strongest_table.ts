/**
 * The strongest 20 links in view as a table: the map for those who cannot see it, and for those who want numbers.
 *
 * Few cells in view: read exactly. Many: from the largest weights of the bins the map holds, and said to be so.
 */

import { readFloats } from "../server/tile_codec";
import { button, element, replaceChildren, token } from "./dom";
import { Latest, told } from "../server/requests";
import { counted, formatted, plural } from "../format_numbers";
import { paths, type Side } from "../server/protocol";
import { strongestOf } from "./ranking";
import type { Shown } from "./inspector";
import { aborted, type Transport } from "../server/transport";

export const MOST_CELLS = 65_536;
const ROWS = 20;
const PAUSE = 300;

export interface View {
  readonly query: readonly [number, number];
  readonly key: readonly [number, number];
}

/** A link between spans of tokens; a span of one is a token. */
export interface Span {
  readonly query: readonly [number, number];
  readonly key: readonly [number, number];
  readonly value: number;
}

export interface TableActions {
  text(side: Side, position: number): string | undefined;
  pick(query: number, key: number): void;
  view(): View;
  held(count: number): readonly Span[];
}

export class StrongestTable {
  readonly element: HTMLElement;
  readonly #caption = element("caption");
  readonly #body = element("tbody");
  readonly #latest = new Latest();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #spans: readonly Span[] = [];
  #exact = false;

  constructor(
    private readonly transport: Transport,
    private readonly actions: TableActions,
    close: () => void,
  ) {
    const head = ["Query", "Key", "Weight"].map((name) =>
      element("th", { scope: "col", class: name === "Weight" ? "number" : null }, name),
    );
    this.element = element(
      "section",
      { class: "strongest-table", "aria-label": "Strongest links in view", tabindex: 0, hidden: true },
      button("Close", close, { class: "close", "aria-label": "Close the table" }),
      element("table", {}, this.#caption, element("thead", {}, element("tr", {}, ...head)), this.#body),
    );
  }

  get open(): boolean {
    return !this.element.hidden;
  }

  setOpen(open: boolean): void {
    this.element.hidden = !open;
    if (!open) {
      this.#latest.stop();
      clearTimeout(this.#timer);
    }
  }

  /** The view moved or other tiles came: look again, once it is quiet. */
  refresh(shown: Shown | null): void {
    if (!this.open || !shown) return;
    clearTimeout(this.#timer);
    this.#latest.stop();
    this.#timer = setTimeout(() => void this.#read(shown), PAUSE);
  }

  refreshNames(): void {
    if (this.open && this.#spans.length > 0) this.#list();
  }

  async #read({ meta, layer, head }: Shown): Promise<void> {
    const { query, key } = this.actions.view();
    const cells = (query[1] - query[0]) * (key[1] - key[0]);
    if (cells <= 0) return;
    if (cells > MOST_CELLS) {
      this.#spans = this.actions.held(ROWS);
      this.#exact = false;
      this.#caption.textContent =
        `Strongest ${counted(this.#spans.length)} places in view, approximate: ${counted(cells)} pairs are in view, ` +
        "so these are read off the picture. Zoom in for exact weights.";
      this.#list();
      return;
    }
    const signal = this.#latest.begin();
    this.#caption.textContent = `Reading ${plural(cells, "pair")}…`;
    try {
      const body = await this.transport.bytes(
        paths.cells(meta.trace, layer, head, query[0], query[1], key[0], key[1]),
        signal,
      );
      if (signal.aborted) return;
      const links = body
        ? strongestOf(readFloats(body).values, key[1] - key[0], { query: query[0], key: key[0] }, ROWS)
        : [];
      this.#exact = true;
      this.#spans = links.map((link) => ({
        query: [link.query, link.query + 1],
        key: [link.key, link.key + 1],
        value: link.weight,
      }));
      this.#caption.textContent = `Strongest ${plural(this.#spans.length, "link")} of the ${plural(cells, "pair")} in view, exact.`;
      this.#list();
    } catch (error) {
      if (!aborted(error)) this.#caption.textContent = told(error);
    }
  }

  #list(): void {
    replaceChildren(
      this.#body,
      ...this.#spans.map(({ query, key, value }) =>
        element(
          "tr",
          {},
          element(
            "th",
            { scope: "row" },
            button(this.#named("query", query), () => this.actions.pick(query[0], key[0]), { title: "Pin this pair" }),
          ),
          element("td", {}, this.#named("key", key)),
          element("td", { class: "number" }, this.#exact ? formatted(value) : `~ ${formatted(value)}`),
        ),
      ),
    );
  }

  #named(side: Side, [from, to]: readonly [number, number]): HTMLElement {
    if (to - from > 1) return element("span", {}, `${counted(from)} to ${counted(to - 1)}`);
    return element("span", {}, `${counted(from)} `, token(this.actions.text(side, from), from));
  }
}
