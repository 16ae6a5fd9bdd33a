/**
 * All heads of a model at once: as small pictures, as a table, or as dots on two scores.
 *
 * In: the trace on show. Out: a head chosen, opened as a map, or silenced, through the store.
 * Layers are read one after the other while this is the view, and what has come is shown at once.
 */

import { getAvailableHeads } from "../app_commands";
import { segments } from "../panels/controls";
import { element, field, replaceChildren } from "../panels/dom";
import type { TraceHead } from "../panels/inspector";
import type { CentreView, ViewContext } from "../panels/view_context";
import { formatCount, formatMeasure, pluralize } from "../format_numbers";
import type { Box } from "../paint/surface";
import { formatTitle } from "../paint/token_text";
import type { Channel, LayerScores, Meta, Session } from "../server/protocol";
import { isAvailable, MOST_ABLATED, type HeadId, type HeadsAs, type State } from "../state";
import { placeCard } from "./hover_card";
import { createGrid } from "./picture_grid";
import { includesHead, countLabels, getHeadName, formatScoreName, toggleHead, type ScoredHead } from "./scored_heads";
import { createScatterView } from "./scatter_view";
import { createHeadLoader, type HeadLoader } from "./head_loader";
import { badge, createTable } from "./head_table";

export interface HeadsScene {
  readonly state: State;
  readonly meta: Meta;
  readonly roster: HeadLoader;
  /** Those that were scored so far, by their places. */
  readonly heads: ReadonlyMap<string, ScoredHead>;
}

export interface HeadsActions {
  choose(place: HeadId): void;
  /** Null is the current one. */
  open(place: HeadId | null): void;
  /** `box` is where it is, in the part. */
  hover(place: HeadId | null, box: Box | null): void;
  /** Or let it speak again; says whether it is silent now. */
  silence(place: HeadId): boolean;
  order(order: string): void;
  axes(axes: readonly [string, string]): void;
  /** What Enter does, where it opens no map. */
  readonly enterHint?: string;
}

/** As much of a scene as dots need. */
export interface ScatterScene {
  readonly state: State;
  readonly heads: ReadonlyMap<string, ScoredHead>;
  readonly roster: {
    readonly heads: readonly ScoredHead[];
    readonly scores: readonly (Pick<LayerScores, "measures" | "meanings"> | null | undefined)[];
  };
}

export interface HeadsPart {
  readonly element: HTMLElement;
  readonly controls?: HTMLElement;
  update(scene: HeadsScene): void;
}

export function getCurrentHead({ layer, head }: State): HeadId {
  return [layer, head];
}

/** Whether the model here can read the text on show again; the example is of a model of its own. */
export function canAblate(session: Session, { trace }: State): boolean {
  return session.ablates && trace !== session.example;
}

/** What a bin of a small picture shows of the weights in it. */
export function choosePooling({ channel }: State): Channel {
  return channel === "mean" ? "mean" : "max";
}

/** Not among those that were asked for. */
export function isFaded({ state, heads }: Pick<ScatterScene, "state" | "heads">, place: HeadId): boolean {
  return state.label !== "" && !heads.get(place.join())?.labels.includes(state.label);
}

/** What a score is, or what a label means. */
export function explainScore({ roster }: Pick<ScatterScene, "roster">, kind: "measures" | "meanings", name: string): string {
  const found = roster.scores.map((one) => one?.[kind][name]).find((one) => one);
  return found ? formatTitle(found, 400) : "";
}

const CARD_WIDTH = 280;
/** Milliseconds: layers come one by one, and a table is not built anew for each. */
const UPDATE_MILLISECONDS = 100;

export function createHeadsView(context: ViewContext): CentreView {
  const { store, session, signal } = context;
  const label = element("select");
  const controls = element("span");
  const status = element("p", { class: "heads-words soft" });
  const stage = element("div", { class: "heads-stage" });
  const card = element("div", { class: "heads-card", "aria-hidden": "true", hidden: true });
  let scene: HeadsScene | null = null;
  let shown: TraceHead | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let listedLabels: string | null = null;

  const loader = createHeadLoader(context.transport, () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      view.update(store.get(), shown);
    }, UPDATE_MILLISECONDS);
  });
  /** The name and numbers of a head, beside it. */
  const hover = (place: HeadId | null, box: Box | null): void => {
    card.hidden = !place || !box || !scene;
    if (!place || !box || !scene) return;
    const head = scene.heads.get(place.join());
    const scores = Object.entries(head?.scores ?? {}).map(([name, value]) =>
      element("div", {}, element("dt", {}, formatScoreName(name)), element("dd", {}, formatMeasure(value))),
    );
    replaceChildren(
      card,
      element("strong", {}, getHeadName(scene.meta, place)),
      includesHead(scene.state.ablated, place) && " silenced",
      element("p", {}, ...(head ? head.labels.map((one) => badge(one, "")) : ["not scored yet"])),
      element("dl", { class: "facts" }, ...scores),
    );
    placeCard(card, stage, box, CARD_WIDTH);
  };
  /** A saved page has pictures and scores of heads whose maps it does not hold. */
  const isReachable = ([layer, head]: HeadId): boolean => {
    const held = isAvailable(getAvailableHeads(session), layer, head);
    if (!held) context.showNotice("This file does not hold the map of that head.");
    return held;
  };
  const actions: HeadsActions = {
    choose([layer, head]) {
      if (!isReachable([layer, head])) return;
      store.set({ layer, head });
      const labels = scene?.heads.get(`${layer},${head}`)?.labels ?? [];
      if (scene) context.announce([getHeadName(scene.meta, [layer, head]), ...labels].join(", "));
    },
    open(place) {
      const [layer, head] = place ?? getCurrentHead(store.get());
      if (isReachable([layer, head])) store.set({ layer, head, view: "map" }, "push");
    },
    hover,
    silence: (place) => toggleAblated(context, place),
    order: (order) => store.set({ order }),
    axes: (axes) => store.set({ axes }),
  };
  const grid = createGrid(context, actions);
  const parts = { grid, table: createTable(actions, session), scatter: createScatterView(context, actions) };
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
    // Building it anew would close it under somebody's hand.
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
    if (done < layers.length) parts.push(`${drawing ? "Drawing" : "Scoring"} layer ${done + 1} of ${layers.length}…`);
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
      const { queries, of } = scores;
      const some = `the first ${formatCount(queries)} of ${formatCount(of)} tokens`;
      parts.push(`Scores are of ${queries < of ? some : `all ${pluralize(of, "token")}`}.`);
    }
    return parts.join(" ");
  };

  const view: CentreView = {
    element: element(
      "section",
      { class: "heads", "aria-label": "All heads", tabindex: -1 },
      element("div", { class: "heads-bar" }, as.element, field("label", label), controls),
      status,
      stage,
    ),
    update(state, now) {
      shown = now;
      if (!now) return view.deactivate();
      const part: HeadsPart = parts[state.headsAs];
      if (part.element.parentElement !== stage) {
        hover(null, null);
        replaceChildren(stage, part.element, card);
        replaceChildren(controls, part.controls);
      }
      loader.load(now.meta, state.headsAs === "grid" ? choosePooling(state) : null, grid.first());
      const heads = new Map(loader.heads.map((head) => [head.place.join(), head]));
      scene = { state, meta: now.meta, roster: loader, heads };
      as.update(state.headsAs);
      showLabels(state.label);
      const [before, after] = [status.textContent ?? "", describeProgress(state, now.meta)];
      status.textContent = after;
      // Spoken once, at the end.
      if (before.includes("…") && !after.includes("…")) context.announce(after);
      part.update(scene);
    },
    deactivate() {
      loader.stop();
      clearTimeout(timer);
      timer = undefined;
      card.hidden = true;
    },
  };
  // The keyboard goes on to what takes it.
  view.element.addEventListener("focus", () => stage.querySelector<HTMLElement>("[tabindex]")?.focus());
  signal.addEventListener("abort", () => view.deactivate());
  return view;
}

/** Silence a head, or let it speak again; says whether it is silent now. */
export function toggleAblated({ store, showNotice }: ViewContext, place: HeadId): boolean {
  const ablated = toggleHead(store.get().ablated, place);
  if (ablated.length > MOST_ABLATED) showNotice(`At most ${MOST_ABLATED} heads can be silenced at once.`);
  else store.set({ ablated }, "push");
  return includesHead(store.get().ablated, place);
}
