/**
 * The bars above the map: where you are and where to go, and how the numbers become colours.
 *
 * Every control writes to the store and reads from it; none keeps a value of its own.
 */

import { button, element, field, replaceChildren, select } from "./dom";
import { percent } from "../numbers";
import { title } from "../paint/token_text";
import type { Meta } from "../server/protocol";
import {
  CHANNELS,
  COLOURS,
  defaultRange,
  HIGHEST_BITS,
  LOWEST_BITS,
  validRange,
  type Channel,
  type State,
  type Store,
  type View,
} from "../state";

export interface ToolbarActions {
  showView(view: View): void;
  fitRange(): void;
  toggleWhatIf(): void;
  showTable(): void;
  copyLink(): void;
  openHelp(): void;
}

export interface ToolbarFacts {
  readonly meta: Meta | null;
  readonly live: boolean;
  readonly sinkShare: number | null;
  readonly tableOpen: boolean;
}

export interface Toolbar {
  readonly element: HTMLElement;
  update(state: State, facts: ToolbarFacts): void;
}

const CHANNEL_NAMES: Readonly<Record<Channel, readonly [string, string]>> = {
  both: ["mean + spikes", "Colour is the mean of the pairs in a pixel; a dot marks a strong link that the mean hides"],
  max: ["largest", "Colour is the largest weight among the pairs in a pixel"],
  mean: ["mean", "Colour is the mean weight of the pairs in a pixel, and nothing else"],
};

export function createToolbar(store: Store, actions: ToolbarActions, finder: HTMLElement): Toolbar {
  // Only narrow pages show this button: there the colours would push the map off the screen.
  const unfold = toggle("Colours", "Show or hide how the map is coloured", () => {
    press(unfold, controls.classList.toggle("unfolded"));
  });
  unfold.classList.add("unfold");
  const views = segments<View>(
    "View",
    [
      ["map", "Map"],
      ["sentence", "Type a sentence"],
    ],
    (view) => actions.showView(view),
  );
  const name = element("p", { class: "trace-name" });
  const badge = element("strong", { class: "badge", hidden: true }, "not what the model computed");
  const where = element(
    "div",
    { class: "bar" },
    element("h1", {}, "Sightline"),
    name,
    views.element,
    badge,
    element("div", { class: "spring" }),
    finder,
    unfold,
    button("Copy link", () => actions.copyLink(), { class: "copy", title: "A link to exactly this view (y)" }),
    button("Help", () => actions.openHelp(), {
      class: "open-help",
      title: "How to read the map, and the keyboard (?)",
    }),
  );

  const channel = segments<Channel>(
    "What a pixel of many pairs shows",
    CHANNELS.map((value) => [value, CHANNEL_NAMES[value][0], CHANNEL_NAMES[value][1]] as const),
    (value) => store.set({ channel: value }),
  );
  const colours = select(
    COLOURS.map((value) => [value, value] as const),
    (value) => store.set({ colours: value }),
    {
      "aria-label": "Colours",
      title: "Colours; all of them rise evenly in brightness",
    },
  );
  const scale = segments<"log" | "linear">(
    "Scale",
    [
      ["log", "log"],
      ["linear", "linear"],
    ],
    (value) => store.set({ linear: value === "linear" }),
  );
  const range = rangeFields(store, actions);
  const sink = toggle(
    "Hide sink",
    "Hatch the column of the first token, where idle heads park their attention (k)",
    () => store.set({ hideSink: !store.get().hideSink }),
  );
  const whatIf = toggle(
    "Look ahead",
    "What if it could look ahead? The same queries and keys without the mask; not what the model computed (u)",
    () => actions.toggleWhatIf(),
  );
  const table = toggle("Table", "The strongest 20 links in view as a table (r)", () => actions.showTable());
  const controls = element(
    "div",
    { class: "bar bar-show", role: "group", "aria-label": "How the map is coloured" },
    channel.element,
    field("colours", colours),
    scale.element,
    range.element,
    sink,
    whatIf,
    element("div", { class: "spring" }),
    table,
  );

  return {
    element: element("header", { class: "bars" }, where, controls),
    update(state, { meta, live, sinkShare, tableOpen }) {
      controls.hidden = finder.hidden = unfold.hidden = meta === null;
      const named = meta ? title(meta.name) : "";
      if (name.textContent !== named) replaceChildren(name, element("bdi", {}, named));
      views.update(state.view);
      views.enable(
        "sentence",
        live || state.view === "sentence",
        "This session has no model to run: start one with sightline look MODEL",
      );
      views.enable("map", state.trace !== "", "There is no trace to map yet");
      channel.update(state.channel);
      colours.value = state.colours;
      scale.update(state.linear ? "linear" : "log");
      range.update(state, meta?.layers[state.layer]?.keys ?? 0);
      press(sink, state.hideSink);
      sink.textContent = state.hideSink && sinkShare !== null ? `Sink hidden: ${percent(sinkShare)}` : "Hide sink";
      whatIf.hidden = !meta || (meta.what_if === null && meta.origin === null);
      press(whatIf, state.whatIf);
      badge.hidden = !state.whatIf;
      press(table, tableOpen);
    },
  };
}

function toggle(label: string, title: string, act: () => void): HTMLButtonElement {
  return button(label, act, { "aria-pressed": "false", title, class: "toggle" });
}

function press(target: HTMLButtonElement, pressed: boolean): void {
  target.setAttribute("aria-pressed", String(pressed));
}

interface Segments<Value> {
  readonly element: HTMLElement;
  update(value: Value): void;
  enable(value: Value, enabled: boolean, why: string): void;
}

/** A few choices side by side, each a button that says whether it is the one. */
function segments<Value extends string>(
  label: string,
  choices: readonly (readonly [Value, string, string?])[],
  chosen: (value: Value) => void,
): Segments<Value> {
  const buttons = choices.map(([value, text, title]) => toggle(text, title ?? "", () => chosen(value)));
  return {
    element: element("div", { class: "segments", role: "group", "aria-label": label }, ...buttons),
    update: (current) => buttons.forEach((made, index) => press(made, choices[index]?.[0] === current)),
    enable(value, enabled, why) {
      const made = buttons[choices.findIndex(([known]) => known === value)];
      if (!made) return;
      made.disabled = !enabled;
      if (!enabled) made.title = why;
    },
  };
}

function rangeFields(
  store: Store,
  actions: ToolbarActions,
): { readonly element: HTMLElement; update(state: State, keys: number): void } {
  const number = (label: string): HTMLInputElement =>
    element("input", {
      type: "number",
      min: LOWEST_BITS,
      max: HIGHEST_BITS,
      step: 0.25,
      "aria-label": label,
      class: "bits",
    });
  const low = number("Darkest colour at, in bits");
  const high = number("Brightest colour at, in bits");
  const change = (): void => {
    const [from, to] = [low.valueAsNumber, high.valueAsNumber];
    if (Number.isFinite(from) && Number.isFinite(to)) store.set({ range: validRange(from, to) });
    // Clamped or refused, the fields show what holds now.
    update(store.get(), shownKeys);
  };
  low.addEventListener("change", change);
  high.addEventListener("change", change);
  let shownKeys = 0;
  const update = ({ range }: State, keys: number): void => {
    shownKeys = keys;
    const [from, to] = range ?? defaultRange(keys);
    low.value = String(from);
    high.value = String(to);
    reset.disabled = range === null;
  };
  const reset = button("Reset", () => store.set({ range: null }), {
    title: "Back to the range that suits the length of the text",
    "aria-label": "Reset the range",
  });
  const group = element(
    "div",
    { class: "range", role: "group", "aria-label": "Colour range, in powers of two" },
    element("span", { "aria-hidden": "true" }, "2^"),
    low,
    element("span", { "aria-hidden": "true" }, "to 2^"),
    high,
    button("Fit", () => actions.fitRange(), {
      title: "Set the range to the values now in view, once",
      "aria-label": "Fit the range",
    }),
    reset,
  );
  return { element: group, update };
}
