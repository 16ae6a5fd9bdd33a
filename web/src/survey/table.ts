/** All heads with the mean and the spread of every statistic; a column puts them in order, a cell chooses both. */

import { getCurrentHead } from "../heads/heads_view";
import { getNextOrder, sortHeads, isSameHead, formatScoreName, type ScoredHead } from "../heads/scored_heads";
import { badge, markOrder, ROWS, shortened } from "../heads/head_table";
import { button, element, replaceChildren } from "../panels/dom";
import { formatTitle } from "../paint/token_text";
import type { HeadId } from "../state";
import type { SurveyPart } from "./survey_page";
import { explainStatistic, type SurveyScene } from "./survey_scene";

export interface TableActions {
  /** A head, and the statistic unless that stays as it is. */
  choose(place: HeadId, statistic?: string): void;
  /** Put heads in order by a statistic, which is then the chosen one; "" is by layer and head. */
  order(order: string): void;
}

export function createSurveyTable(actions: TableActions): SurveyPart {
  const head = element("tr");
  const body = element("tbody");
  let rows = new Map<string, HTMLElement>();
  let most = ROWS;
  /** There before anything is done with it. */
  let scene!: SurveyScene;
  let listed = "";
  const more = button("Show more heads", () => {
    most += ROWS;
    part.update(scene);
  });

  const build = ({ place, name, labels, scores }: ScoredHead): HTMLElement => {
    const own = scene.about.heads.find((one) => isSameHead(one.place, place));
    const row = element(
      "tr",
      {},
      element("th", { scope: "row" }, button(name, () => actions.choose(place), { title: "Show its passages" })),
      element("td", {}, ...labels.map((label) => badge(label, formatTitle(scene.about.meanings[label] ?? "", 400)))),
      ...scene.about.statistics.map((one) =>
        element(
          "td",
          { class: "number", "data-statistic": one.name },
          shortened(scores[one.name]),
          element("span", { class: "spread soft" }, own?.spread[one.name] === undefined ? "" : ` ±${shortened(own.spread[one.name])}`),
        ),
      ),
    );
    // The button of the row does the same for the keyboard.
    row.addEventListener("click", ({ target }) => {
      const cell = target instanceof Element ? target.closest<HTMLElement>("[data-statistic]") : null;
      if (target instanceof Element && !target.closest("button")) actions.choose(place, cell?.dataset["statistic"]);
    });
    return row;
  };
  const column = (label: string, says: string, name: string): HTMLElement =>
    element(
      "th",
      { scope: "col", class: name && "number", "data-score": name },
      button(label, () => actions.order(name && getNextOrder(scene.state.order, name)), { title: says }),
    );

  const part: SurveyPart = {
    element: element(
      "div",
      { class: "heads-table", tabindex: 0, role: "region", "aria-label": "All heads with their means and spreads" },
      element("table", {}, element("thead", {}, head), body),
      more,
    ),
    update(now) {
      const first = !scene;
      scene = now;
      const { state, about, roster, statistic } = now;
      if (first) {
        rows = new Map();
        replaceChildren(
          head,
          column("head", "By layer and head", ""),
          element("th", { scope: "col" }, "labels"),
          ...about.statistics.map(({ name }) => column(formatScoreName(name), explainStatistic(about, name), name)),
        );
      }
      markOrder(head, state.order);
      const wanted = roster.heads.filter(({ labels }) => state.label === "" || labels.includes(state.label));
      const shown = sortHeads(wanted, state.order).slice(0, most);
      const made = shown.map((one) => {
        let row = rows.get(one.name);
        if (!row) rows.set(one.name, (row = build(one)));
        const current = isSameHead(one.place, getCurrentHead(state));
        row.setAttribute("aria-current", String(current));
        for (const cell of row.querySelectorAll<HTMLElement>("[data-statistic]"))
          cell.classList.toggle("chosen", cell.dataset["statistic"] === statistic);
        return row;
      });
      // Only another order moves rows: one that is taken out and put back loses the keyboard.
      const list = shown.map(({ name }) => name).join();
      if (list !== listed) replaceChildren(body, ...made);
      listed = list;
      more.hidden = wanted.length <= most;
    },
  };
  return part;
}
