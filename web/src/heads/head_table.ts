/** A table with one row per head, sorted by any of its scores. Rows are built once and kept. */

import { button, element, replaceChildren } from "../panels/dom";
import { formatCount } from "../format_numbers";
import { explain, getCurrentHead, type HeadsPart, type HeadsScene } from "./heads_scene";
import { badge } from "./label_badge";
import { formatScoreName, getNextOrder, isSameHead, sortHeads, type ScoredHead } from "./scored_heads";

/** Further rows are built on demand. */
const PAGE_ROWS = 512;

export interface HeadRow<Scene> {
  readonly element: HTMLElement;
  update(scene: Scene): void;
}

export interface HeadTableOptions<Scene> {
  /** For screen readers. */
  readonly label: string;
  /** Headings between the names of the heads and their labels. */
  readonly headings: readonly string[];
  /** Columns and rows are built anew when this changes. */
  getKey(scene: Scene): string;
  listScores(scene: Scene): readonly string[];
  explainScore(scene: Scene, score: string): string;
  createRow(head: ScoredHead, scores: readonly string[], scene: Scene): HeadRow<Scene>;
  order(order: string): void;
}

export function createHeadTable<Scene extends HeadsScene>(options: HeadTableOptions<Scene>): HeadsPart<Scene> {
  const headings = element("tr");
  const body = element("tbody");
  let rows = new Map<string, HeadRow<Scene>>();
  let maxRows = PAGE_ROWS;
  /** Set by the first update. */
  let scene!: Scene;
  let columnsKey: string | null = null;
  let listed = "";
  const more = button("Show more heads", () => {
    maxRows += PAGE_ROWS;
    part.update(scene);
  });

  /** `score` is "" for the column that sorts by layer and head. */
  const createHeading = (label: string, tooltip: string, score: string): HTMLElement =>
    element(
      "th",
      { scope: "col", class: score && "number", "data-score": score },
      button(label, () => options.order(score && getNextOrder(scene.state.order, score)), { title: tooltip }),
    );
  const getRow = (head: ScoredHead, scores: readonly string[]): HTMLElement => {
    let row = rows.get(head.name);
    if (!row) rows.set(head.name, (row = options.createRow(head, scores, scene)));
    row.update(scene);
    row.element.setAttribute("aria-current", String(isSameHead(head.id, getCurrentHead(scene.state))));
    return row.element;
  };

  const part: HeadsPart<Scene> = {
    element: element(
      "div",
      { class: "heads-table", tabindex: 0, role: "region", "aria-label": options.label },
      element("table", {}, element("thead", {}, headings), body),
      more,
    ),
    update(newScene) {
      scene = newScene;
      const { state, catalog } = scene;
      const scores = options.listScores(scene);
      const key = `${options.getKey(scene)} ${scores.join()}`;
      if (key !== columnsKey) {
        columnsKey = key;
        rows = new Map();
        replaceChildren(
          headings,
          createHeading("head", "By layer and head", ""),
          ...[...options.headings, "labels"].map((heading) => element("th", { scope: "col" }, heading)),
          ...scores.map((score) => createHeading(formatScoreName(score), options.explainScore(scene, score), score)),
        );
      }
      markOrder(headings, state.order);
      const wanted = catalog.heads.filter(({ labels }) => state.label === "" || labels.includes(state.label));
      const visible = sortHeads(wanted, state.order).slice(0, maxRows);
      const elements = visible.map((head) => getRow(head, scores));
      // Rows are moved only when the order changes: a row that is taken out and put back loses the focus.
      const list = key + visible.map(({ name }) => name).join();
      if (list !== listed) replaceChildren(body, ...elements);
      listed = list;
      more.hidden = wanted.length <= maxRows;
    },
  };
  return part;
}

/** The cell with the labels of a head. */
export function createLabelCell(scene: HeadsScene, { labels }: ScoredHead): HTMLElement {
  return element("td", {}, ...labels.map((label) => badge(label, explain(scene, "meanings", label))));
}

/** Mark the column that sorts the heads. */
function markOrder(headings: HTMLElement, order: string): void {
  for (const cell of headings.querySelectorAll<HTMLElement>("[data-score]")) {
    const name = cell.dataset["score"] ?? "";
    const sorted = order === name ? "ascending" : order === `-${name}` && "descending";
    cell.setAttribute("aria-sort", sorted || "none");
  }
}

/** A score with as many decimals as line up in a column. */
export function formatScore(value = NaN): string {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) < 100 ? value.toFixed(Math.abs(value) < 10 ? 3 : 1) : formatCount(value);
}
