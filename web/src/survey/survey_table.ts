/** All heads with the mean and the spread of every statistic; a column sorts them, a cell chooses head and statistic. */

import { createHeadTable, createLabelCell, formatScore } from "../heads/head_table";
import type { HeadsPart } from "../heads/heads_scene";
import { isSameHead } from "../heads/scored_heads";
import { button, element } from "../panels/dom";
import type { HeadId } from "../state";
import { explainStatistic, type SurveyScene } from "./survey_scene";

export interface SurveyTableActions {
  /** Choose a head, and a statistic unless that stays as it is. */
  choose(id: HeadId, statistic?: string): void;
  /** Sort by a statistic, which is then the chosen one; "" sorts by layer and head. */
  order(order: string): void;
}

export function createSurveyTable({ choose, order }: SurveyTableActions): HeadsPart<SurveyScene> {
  return createHeadTable<SurveyScene>({
    label: "All heads with their means and spreads",
    headings: [],
    getKey: () => "",
    listScores: ({ info }) => info.statistics.map(({ name }) => name),
    explainScore: ({ info }, score) => explainStatistic(info, score),
    order,
    createRow(head, statistics, scene) {
      const { id, name, scores } = head;
      const spread = scene.info.heads.find((one) => isSameHead(one.place, id))?.spread ?? {};
      const cells = statistics.map((statistic) =>
        element(
          "td",
          { class: "number", "data-statistic": statistic },
          formatScore(scores[statistic]),
          element("span", { class: "spread soft" }, spread[statistic] === undefined ? "" : ` ±${formatScore(spread[statistic])}`),
        ),
      );
      const row = element(
        "tr",
        {},
        element("th", { scope: "row" }, button(name, () => choose(id), { title: "Show its passages" })),
        createLabelCell(scene, head),
        ...cells,
      );
      // With the keyboard, the button of the row does the same.
      row.addEventListener("click", ({ target }) => {
        const cell = target instanceof Element ? target.closest<HTMLElement>("[data-statistic]") : null;
        if (target instanceof Element && !target.closest("button")) choose(id, cell?.dataset["statistic"]);
      });
      return {
        element: row,
        update({ statistic }) {
          for (const cell of cells) cell.classList.toggle("chosen", cell.dataset["statistic"] === statistic);
        },
      };
    },
  });
}
