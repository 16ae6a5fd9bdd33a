/** All heads of a trace with their labels and scores; a row opens the map of its head and can ablate it. */

import { button, element } from "../panels/dom";
import type { Session } from "../server/protocol";
import type { HeadId } from "../state";
import { canAblate } from "./ablated_heads";
import { createHeadTable, createLabelCell, formatScore } from "./head_table";
import { explain, type HeadsActions, type HeadsPart } from "./heads_scene";
import type { TraceScene } from "./picture_grid";
import { includesHead, listScoreNames } from "./scored_heads";

/** `toggleAblation` returns whether the head is ablated afterwards. */
export function createScoreTable(
  { open, order }: HeadsActions,
  session: Session,
  toggleAblation: (id: HeadId) => boolean,
): HeadsPart<TraceScene> {
  return createHeadTable<TraceScene>({
    label: "All heads with their scores",
    headings: ["ablate"],
    getKey: ({ meta }) => meta.trace,
    listScores: ({ catalog }) => listScoreNames(catalog.heads),
    explainScore: (scene, score) => explain(scene, "measures", score),
    order,
    createRow(head, scores, scene) {
      const { id, name } = head;
      const ablated = element("input", { type: "checkbox", "aria-label": `Ablate ${name}` });
      ablated.addEventListener("change", () => {
        ablated.checked = toggleAblation(id);
      });
      const row = element(
        "tr",
        {},
        element("th", { scope: "row" }, button(name, () => undefined, { title: "Open its map" })),
        element("td", {}, element("label", { class: "switch" }, ablated)),
        createLabelCell(scene, head),
        ...scores.map((score) => element("td", { class: "number" }, formatScore(head.scores[score]))),
      );
      // Clicks on the button arrive here as well.
      row.addEventListener("click", ({ target }) => {
        if (!(target instanceof Element && target.closest("label"))) open(id);
      });
      return {
        element: row,
        update({ state }) {
          ablated.disabled = !canAblate(session, state);
          ablated.checked = includesHead(state.ablated, id);
        },
      };
    },
  });
}
