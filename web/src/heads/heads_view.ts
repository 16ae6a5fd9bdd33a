/**
 * All heads of a model at once: as small pictures, as a table, or as dots on two scores.
 *
 * In: the trace on show. Out: a head chosen, opened as a map, or silenced, through the store.
 * Layers are read one after the other while this is the view, and what has come is shown at once.
 */

import { heldBy } from "../app_commands";
import { segments } from "../panels/controls";
import { element, field, replaceChildren } from "../panels/dom";
import type { Shown } from "../panels/inspector";
import type { CentreView, ViewContext } from "../panels/view_context";
import { counted, measured, plural } from "../format_numbers";
import type { Box } from "../paint/surface";
import { title } from "../paint/token_text";
import type { Channel, LayerScores, Meta, Session } from "../server/protocol";
import { holds, MOST_ABLATED, type HeadPlace, type HeadsAs, type State } from "../state";
import { placeCard } from "./hover_card";
import { createGrid } from "./picture_grid";
import { isAmong, labelCounts, nameOf, spaced, toggled, type Head } from "./scored_heads";
import { createPlot } from "./scatter_view";
import { createRoster, type Roster } from "./head_loader";
import { badge, createTable } from "./head_table";

export interface Scene {
  readonly state: State;
  readonly meta: Meta;
  readonly roster: Roster;
  /** Those that were scored so far, by their places. */
  readonly heads: ReadonlyMap<string, Head>;
}

export interface PartActions {
  choose(place: HeadPlace): void;
  /** Null is the current one. */
  open(place: HeadPlace | null): void;
  /** `box` is where it is, in the part. */
  hover(place: HeadPlace | null, box: Box | null): void;
  /** Or let it speak again; says whether it is silent now. */
  silence(place: HeadPlace): boolean;
  order(order: string): void;
  axes(axes: readonly [string, string]): void;
  /** What Enter does, where it opens no map. */
  readonly enters?: string;
}

/** As much of a scene as dots need. */
export interface Dotted {
  readonly state: State;
  readonly heads: ReadonlyMap<string, Head>;
  readonly roster: {
    readonly heads: readonly Head[];
    readonly scores: readonly (Pick<LayerScores, "measures" | "meanings"> | null | undefined)[];
  };
}

export interface Part {
  readonly element: HTMLElement;
  readonly controls?: HTMLElement;
  update(scene: Scene): void;
}

export function currentOf({ layer, head }: State): HeadPlace {
  return [layer, head];
}

/** Whether the model here can read the text on show again; the example is of a model of its own. */
export function ablates(session: Session, { trace }: State): boolean {
  return session.ablates && trace !== session.example;
}

/** What a bin of a small picture shows of the weights in it. */
export function pooledBy({ channel }: State): Channel {
  return channel === "mean" ? "mean" : "max";
}

/** Not among those that were asked for. */
export function isFaded({ state, heads }: Pick<Dotted, "state" | "heads">, place: HeadPlace): boolean {
  return state.label !== "" && !heads.get(place.join())?.labels.includes(state.label);
}

/** What a score is, or what a label means. */
export function explained({ roster }: Pick<Dotted, "roster">, kind: "measures" | "meanings", name: string): string {
  const found = roster.scores.map((one) => one?.[kind][name]).find((one) => one);
  return found ? title(found, 400) : "";
}

const CARD = 280;
/** Milliseconds: layers come one by one, and a table is not built anew for each. */
const PAUSE = 100;

export function createHeadsView(context: ViewContext): CentreView {
  const { store, session, signal } = context;
  const label = element("select");
  const controls = element("span");
  const words = element("p", { class: "heads-words soft" });
  const stage = element("div", { class: "heads-stage" });
  const card = element("div", { class: "heads-card", "aria-hidden": "true", hidden: true });
  let scene: Scene | null = null;
  let shown: Shown | null = null;
  let waiting: ReturnType<typeof setTimeout> | undefined;
  let listed: string | null = null;

  const roster = createRoster(context.transport, () => {
    waiting ??= setTimeout(() => {
      waiting = undefined;
      view.update(store.get(), shown);
    }, PAUSE);
  });
  /** The name and numbers of a head, beside it. */
  const hover = (place: HeadPlace | null, box: Box | null): void => {
    card.hidden = !place || !box || !scene;
    if (!place || !box || !scene) return;
    const head = scene.heads.get(place.join());
    const scores = Object.entries(head?.scores ?? {}).map(([name, value]) =>
      element("div", {}, element("dt", {}, spaced(name)), element("dd", {}, measured(value))),
    );
    replaceChildren(
      card,
      element("strong", {}, nameOf(scene.meta, place)),
      isAmong(scene.state.ablated, place) && " silenced",
      element("p", {}, ...(head ? head.labels.map((one) => badge(one, "")) : ["not scored yet"])),
      element("dl", { class: "facts" }, ...scores),
    );
    placeCard(card, stage, box, CARD);
  };
  /** A saved page has pictures and scores of heads whose maps it does not hold. */
  const reached = ([layer, head]: HeadPlace): boolean => {
    const held = holds(heldBy(session), layer, head);
    if (!held) context.notice("This file does not hold the map of that head.");
    return held;
  };
  const actions: PartActions = {
    choose([layer, head]) {
      if (!reached([layer, head])) return;
      store.set({ layer, head });
      const labels = scene?.heads.get(`${layer},${head}`)?.labels ?? [];
      if (scene) context.say([nameOf(scene.meta, [layer, head]), ...labels].join(", "));
    },
    open(place) {
      const [layer, head] = place ?? currentOf(store.get());
      if (reached([layer, head])) store.set({ layer, head, view: "map" }, "push");
    },
    hover,
    silence: (place) => silence(context, place),
    order: (order) => store.set({ order }),
    axes: (axes) => store.set({ axes }),
  };
  const grid = createGrid(context, actions);
  const parts = { grid, table: createTable(actions, session), scatter: createPlot(context, actions) };
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
    const counts = labelCounts(roster.heads);
    if (!counts.some(([one]) => one === chosen) && chosen !== "") counts.push([chosen, 0]);
    // Building it anew would close it under somebody's hand.
    if (counts.join() !== listed) {
      listed = counts.join();
      const options = counts.map(([value, count]) => element("option", { value }, `${value} (${count})`));
      replaceChildren(label, element("option", { value: "" }, "all"), ...options);
    }
    label.value = chosen;
  };
  const told = (state: State, { layers }: Meta): string => {
    const pictures = state.headsAs === "grid";
    const count = (list: readonly unknown[]): number => layers.filter((_, layer) => list[layer] !== undefined).length;
    const drawing = pictures && count(roster.pictures) < layers.length;
    const done = count(drawing ? roster.pictures : roster.scores);
    const parts = [roster.problem];
    if (done < layers.length) parts.push(`${drawing ? "Drawing" : "Scoring"} layer ${done + 1} of ${layers.length}…`);
    const tile = roster.pictures.find((one) => one);
    const scores = roster.scores.find((one) => one);
    if (pictures && tile) {
      const rows = counted(layers[tile.z]?.queries ?? 0);
      parts.push(
        `Each picture has ${tile.y} × ${tile.columns} bins:`,
        `the ${pooledBy(state) === "mean" ? "mean (drawn small, the largest mean in a pixel)" : "largest"} weight in each,`,
        `from ${tile.partial ? `${counted(tile.x)} of ${rows}` : `all ${rows}`} rows.`,
      );
    } else if (!pictures && scores) {
      const { queries, of } = scores;
      const some = `the first ${counted(queries)} of ${counted(of)} tokens`;
      parts.push(`Scores are of ${queries < of ? some : `all ${plural(of, "token")}`}.`);
    }
    return parts.join(" ");
  };

  const view: CentreView = {
    element: element(
      "section",
      { class: "heads", "aria-label": "All heads", tabindex: -1 },
      element("div", { class: "heads-bar" }, as.element, field("label", label), controls),
      words,
      stage,
    ),
    update(state, now) {
      shown = now;
      if (!now) return view.leave();
      const part: Part = parts[state.headsAs];
      if (part.element.parentElement !== stage) {
        hover(null, null);
        replaceChildren(stage, part.element, card);
        replaceChildren(controls, part.controls);
      }
      roster.want(now.meta, state.headsAs === "grid" ? pooledBy(state) : null, grid.first());
      const heads = new Map(roster.heads.map((head) => [head.place.join(), head]));
      scene = { state, meta: now.meta, roster, heads };
      as.update(state.headsAs);
      showLabels(state.label);
      const [before, after] = [words.textContent ?? "", told(state, now.meta)];
      words.textContent = after;
      // Spoken once, at the end.
      if (before.includes("…") && !after.includes("…")) context.say(after);
      part.update(scene);
    },
    leave() {
      roster.stop();
      clearTimeout(waiting);
      waiting = undefined;
      card.hidden = true;
    },
  };
  // The keyboard goes on to what takes it.
  view.element.addEventListener("focus", () => stage.querySelector<HTMLElement>("[tabindex]")?.focus());
  signal.addEventListener("abort", () => view.leave());
  return view;
}

/** Silence a head, or let it speak again; says whether it is silent now. */
export function silence({ store, notice }: ViewContext, place: HeadPlace): boolean {
  const ablated = toggled(store.get().ablated, place);
  if (ablated.length > MOST_ABLATED) notice(`At most ${MOST_ABLATED} heads can be silenced at once.`);
  else store.set({ ablated }, "push");
  return isAmong(store.get().ablated, place);
}
