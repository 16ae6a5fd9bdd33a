/** All heads with their labels and scores as a table, in any order; each opens as a map and can be silenced. */

import { button, element, replaceChildren } from "../panels/dom";
import { formatCount } from "../format_numbers";
import type { Session } from "../server/protocol";
import { canAblate, getCurrentHead, explainScore, type HeadsPart, type HeadsActions, type HeadsScene } from "./heads_view";
import { includesHead, getNextOrder, sortHeads, isSameHead, listScoreNames, formatScoreName, type ScoredHead } from "./scored_heads";
import { getLabelShape } from "./scatter";

/** More rows than these are built when they are asked for. */
export const ROWS = 512;

interface Row {
  readonly row: HTMLElement;
  readonly silence: HTMLInputElement;
}

export function createTable(actions: HeadsActions, session: Session): HeadsPart {
  const head = element("tr");
  const body = element("tbody");
  let rows = new Map<string, Row>();
  let most = ROWS;
  /** There before anything is done with it. */
  let scene!: HeadsScene;
  let columns = "";
  let listed = "";
  const more = button("Show more heads", () => {
    most += ROWS;
    part.update(scene);
  });

  const build = ({ place, name, labels, scores }: ScoredHead, names: readonly string[]): Row => {
    const silence = element("input", { type: "checkbox", "aria-label": `Silence ${name}` });
    silence.addEventListener("change", () => {
      silence.checked = actions.silence(place);
    });
    const row = element(
      "tr",
      {},
      element("th", { scope: "row" }, button(name, () => undefined, { title: "Open its map" })),
      element("td", {}, element("label", { class: "switch" }, silence)),
      element("td", {}, ...labels.map((label) => badge(label, explainScore(scene, "meanings", label)))),
      ...names.map((score) => element("td", { class: "number" }, shortened(scores[score]))),
    );
    // The button's own clicks come here as well.
    row.addEventListener("click", ({ target }) => {
      if (!(target instanceof Element && target.closest("label"))) actions.open(place);
    });
    return { row, silence };
  };
  /** `next` is what a click makes of the order. */
  const column = (label: string, says: string, name: string, next: (order: string) => string): HTMLElement =>
    element(
      "th",
      { scope: "col", class: name && "number", "data-score": name },
      button(label, () => actions.order(next(scene.state.order)), { title: says }),
    );

  const part: HeadsPart = {
    element: element(
      "div",
      { class: "heads-table", tabindex: 0, role: "region", "aria-label": "All heads with their scores" },
      element("table", {}, element("thead", {}, head), body),
      more,
    ),
    update(now) {
      scene = now;
      const { state, roster } = now;
      const names = listScoreNames(roster.heads);
      const same = `${now.meta.trace} ${names.join()}`;
      if (columns !== same) {
        columns = same;
        rows = new Map();
        replaceChildren(
          head,
          column("head", "By layer and head", "", () => ""),
          element("th", { scope: "col" }, "silence"),
          element("th", { scope: "col" }, "labels"),
          ...names.map((name) =>
            column(formatScoreName(name), explainScore(now, "measures", name), name, (order) => getNextOrder(order, name)),
          ),
        );
      }
      markOrder(head, state.order);
      const wanted = roster.heads.filter(({ labels }) => state.label === "" || labels.includes(state.label));
      const shown = sortHeads(wanted, state.order).slice(0, most);
      const made = shown.map((one) => {
        let held = rows.get(one.name);
        if (!held) rows.set(one.name, (held = build(one, names)));
        held.silence.disabled = !canAblate(session, state);
        held.silence.checked = includesHead(state.ablated, one.place);
        held.row.setAttribute("aria-current", String(isSameHead(one.place, getCurrentHead(state))));
        return held.row;
      });
      // Only another order moves rows: one that is taken out and put back loses the keyboard.
      const list = same + shown.map(({ name }) => name).join();
      if (list !== listed) replaceChildren(body, ...made);
      listed = list;
      more.hidden = wanted.length <= most;
    },
  };
  return part;
}

/** A label by its shape and its name, with what it means on it. */
export function badge(label: string, meaning: string): HTMLElement {
  const mark = element("span", { "aria-hidden": "true" }, getLabelShape(label));
  return element("span", { class: "head-label", title: meaning }, mark, ` ${label}`);
}

/** Tell by which column the heads are in order. */
export function markOrder(head: HTMLElement, order: string): void {
  for (const cell of head.querySelectorAll<HTMLElement>("[data-score]")) {
    const name = cell.dataset["score"] ?? "";
    const sorted = order === name ? "ascending" : order === `-${name}` && "descending";
    cell.setAttribute("aria-sort", sorted || "none");
  }
}

/** As many decimals as line up in a column. */
export function shortened(value = NaN): string {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) < 100 ? value.toFixed(Math.abs(value) < 10 ? 3 : 1) : formatCount(value);
}
