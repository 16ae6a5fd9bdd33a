/**
 * All heads of a model at once: as small pictures, as a table, or as dots on two scores.
 *
 * In: the shown trace. Out: a head chosen, opened as a map, or ablated, through the store.
 * Layers are loaded one after the other while this is the view, and shown as they arrive.
 */

import { formatCount, pluralize } from "../format_numbers";
import type { Box } from "../geometry/box";
import { getAvailableHeads } from "../head_order";
import { segments } from "../panels/controls";
import { element, field, replaceChildren } from "../panels/dom";
import type { CentreView, ViewContext } from "../panels/view_context";
import type { Meta, TraceHead } from "../server/protocol";
import { isAvailable, type HeadId, type HeadsAs, type State } from "../state";
import { toggleAblation } from "./ablated_heads";
import { createHeadLoader } from "./head_loader";
import { getCurrentHead, type HeadsActions, type HeadsPart } from "./heads_scene";
import { createHeadsArea } from "./heads_area";
import { choosePooling, createPictureGrid, type TraceScene } from "./picture_grid";
import { createScatterView } from "./scatter_view";
import { createScoreTable } from "./score_table";
import { countLabels, getHeadName, includesHead } from "./scored_heads";

/** Milliseconds: layers come one by one, and a table is not built anew for each. */
const UPDATE_MILLISECONDS = 100;

export function createHeadsView(context: ViewContext): CentreView {
  const { store, session, signal } = context;
  const label = element("select");
  const status = element("p", { class: "heads-words soft" });
  const area = createHeadsArea();
  let scene: TraceScene | null = null;
  let shown: TraceHead | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let listedLabels: string | null = null;

  const loader = createHeadLoader(context.transport, () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      view.update(store.get(), shown);
    }, UPDATE_MILLISECONDS);
  }, context.pictures);
  const hover = (id: HeadId | null, box: Box | null): void => {
    if (!id || !box || !scene) return area.card.hide();
    const note = includesHead(scene.state.ablated, id) ? " ablated" : "";
    area.card.show(box, getHeadName(scene.meta, id), scene.heads.get(id.join()), note);
  };
  /** A saved page has pictures and scores of heads whose maps it does not hold. */
  const isReachable = ([layer, head]: HeadId): boolean => {
    const isHeld = isAvailable(getAvailableHeads(session), layer, head);
    if (!isHeld) context.showNotice("This file does not hold the map of that head.");
    return isHeld;
  };
  const actions: HeadsActions = {
    choose([layer, head]) {
      if (!isReachable([layer, head])) return;
      store.set({ layer, head });
      const labels = scene?.heads.get(`${layer},${head}`)?.labels ?? [];
      if (scene) context.announce([getHeadName(scene.meta, [layer, head]), ...labels].join(", "));
    },
    open(id) {
      const [layer, head] = id ?? getCurrentHead(store.get());
      if (isReachable([layer, head])) store.set({ layer, head, view: "map" }, "push");
    },
    hover,
    order: (order) => store.set({ order }),
    setAxes: (axes) => store.set({ axes }),
  };
  const grid = createPictureGrid(context, actions);
  const table = createScoreTable(actions, session, (id) => toggleAblation(context, id));
  const parts = { grid, table, scatter: createScatterView(context, actions) };
  const as = segments<HeadsAs>(
    "Heads as",
    [
      ["grid", "Pictures", "Each head as a small map"],
      ["table", "Table", "Labels and scores, in any order"],
      ["scatter", "Dots", "Each head as a dot on two scores"],
    ],
    (headsAs) => store.set({ headsAs }, "push"),
  );
  label.addEventListener("change", () => store.set({ label: label.value }));

  const showLabels = (chosen: string): void => {
    const counts = countLabels(loader.heads);
    if (!counts.some(([one]) => one === chosen) && chosen !== "") counts.push([chosen, 0]);
    // Rebuilding the list would close it while it is open.
    if (counts.join() !== listedLabels) {
      listedLabels = counts.join();
      const options = counts.map(([value, count]) => element("option", { value }, `${value} (${count})`));
      replaceChildren(label, element("option", { value: "" }, "all"), ...options);
    }
    label.value = chosen;
  };
  const describeProgress = (state: State, { layers }: Meta): string => {
    const pictures = state.headsAs === "grid";
    const count = (list: readonly unknown[]): number => layers.filter((_, layer) => list[layer] !== undefined).length;
    const drawing = pictures && count(loader.pictures) < layers.length;
    const done = count(drawing ? loader.pictures : loader.scores);
    const parts = [loader.problem];
    if (loader.hasStopped) parts.push(`The server does not answer: ${done} of ${layers.length} layers are here.`);
    else if (done < layers.length) parts.push(`${drawing ? "Drawing" : "Scoring"} layer ${done + 1} of ${layers.length}…`);
    const tile = loader.pictures.find((one) => one);
    const scores = loader.scores.find((one) => one);
    if (pictures && tile) {
      const rows = formatCount(layers[tile.z]?.queries ?? 0);
      parts.push(
        `Each picture has ${tile.y} × ${tile.columns} bins:`,
        `the ${choosePooling(state) === "mean" ? "mean (drawn small, the largest mean in a pixel)" : "largest"} weight in each,`,
        `from ${tile.partial ? `${formatCount(tile.x)} of ${rows}` : `all ${rows}`} rows.`,
      );
    } else if (!pictures && scores) {
      const { scored_queries: scored, num_queries: all } = scores;
      const some = `the first ${formatCount(scored)} of ${formatCount(all)} tokens`;
      parts.push(`Scores are of ${scored < all ? some : `all ${pluralize(all, "token")}`}.`);
    }
    return parts.join(" ");
  };

  const view: CentreView = {
    element: element(
      "section",
      { class: "heads", "aria-label": "All heads", tabindex: -1 },
      element("div", { class: "heads-bar" }, as.element, field("label", label), area.controls),
      status,
      area.element,
    ),
    update(state, head) {
      shown = head;
      if (!head) return view.deactivate();
      const part: HeadsPart<TraceScene> = parts[state.headsAs];
      area.show(part);
      loader.load(head.meta, state.headsAs === "grid" ? choosePooling(state) : null, grid.findFirstLayer(), state.layer);
      const heads = new Map(loader.heads.map((head) => [head.id.join(), head]));
      scene = { state, meta: head.meta, catalog: loader, heads };
      as.update(state.headsAs);
      showLabels(state.label);
      const [before, after] = [status.textContent ?? "", describeProgress(state, head.meta)];
      status.textContent = after;
      // Spoken once, at the end.
      if (before.includes("…") && !after.includes("…")) context.announce(after);
      part.update(scene);
    },
    deactivate() {
      loader.stop();
      clearTimeout(timer);
      timer = undefined;
      area.card.hide();
    },
  };
  // Pass the focus on to the element that handles keys.
  view.element.addEventListener("focus", () => area.element.querySelector<HTMLElement>("[tabindex]")?.focus());
  signal.addEventListener("abort", () => view.deactivate());
  return view;
}
