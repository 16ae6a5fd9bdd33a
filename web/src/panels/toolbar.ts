/**
 * The bars above the map: views, search and links; and the controls of colours.
 *
 * Controls write to the store and show its state.
 */

import type { AppCommands } from "../app_commands";
import { createMenu, segments, setPressed, toggle } from "./controls";
import { button, element, field, replaceChildren, select } from "./dom";
import { formatPercent } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import type { Meta } from "../server/protocol";
import {
  CHANNELS,
  COLOURS,
  getDefaultRange,
  HIGHEST_BITS,
  LOWEST_BITS,
  SCALES,
  clampRange,
  type ChannelMode,
  type Scale,
  type State,
  type Store,
  type View,
} from "../state";

export interface ToolbarState {
  readonly meta: Meta | null;
  /** Why no sentence can be typed; null when it can. */
  readonly sentenceProblem: string | null;
  readonly sinkShare: number | null;
  readonly isTableOpen: boolean;
}

export interface Toolbar {
  readonly element: HTMLElement;
  update(state: State, facts: ToolbarState): void;
}

const CHANNEL_NAMES: Readonly<Record<ChannelMode, readonly [string, string]>> = {
  both: ["average, strong links marked", "Colour is the mean of the pairs in a pixel; a dot marks a strong link that the mean hides (x)"],
  max: ["largest", "Colour is the largest weight among the pairs in a pixel (x)"],
  mean: ["average", "Colour is the mean weight of the pairs in a pixel, and nothing else (x)"],
};

const SCALE_NAMES: Readonly<Record<Scale, string>> = {
  auto: "automatic scale",
  log: "log of weight",
  linear: "linear in weight",
  uniform: "relative to uniform",
};

/** `ask` is the Ask box; `home` the page to link back to, and its name. */
export function createToolbar(
  store: Store,
  commands: AppCommands,
  ask: HTMLElement,
  home: readonly [href: string, name: string] | null,
  signal: AbortSignal,
): Toolbar {
  const views = segments<View>(
    "View",
    [
      ["map", "Map", "Every query and key as a picture (m)"],
      ["text", "Text", "The text itself, with what each token attends to (t)"],
      ["heads", "Heads", "All heads at once, as pictures and by their scores (h)"],
      ["picture", "Picture", "The image, with what each patch attends to (o)"],
      ["sentence", "Type a sentence", "Run the model on your own text (i)"],
    ],
    (view) => commands.showView(view),
  );
  const save = button("Save…", () => commands.export(), { title: "A picture, the numbers, or a page in one file (e)" });
  const channel = segments<ChannelMode>(
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
  const scale = select(
    SCALES.map((value) => [value, SCALE_NAMES[value]] as const),
    (value) => store.set({ scale: value }),
    { "aria-label": "Scale", title: "What colours are proportional to (l); automatic: relative to uniform attention far out, the weight near" },
  );
  const range = createRangeFields(store, commands);
  const sink = toggle(
    "Hide first token",
    "Hatch the column of the first token, where idle heads park their attention (k)",
    () => store.set({ hideSink: !store.get().hideSink }),
  );
  const unmasked = toggle(
    "Without the mask",
    "The same queries and keys without the causal mask; not what the model computed (u)",
    () => commands.toggleUnmasked(),
  );
  const table = toggle("Strongest links", "The strongest 20 links in view as a table (r)", () => commands.toggleTable());
  const large = toggle("Presentation size", "Everything larger, for a projector (p)", () => commands.toggleLarge());
  const compare = toggle("Compare", "Two heads side by side, in one square, or as their ratio (c)", () =>
    commands.compare(),
  );
  const coloured = field("colours", colours);
  const controls = element(
    "div",
    { class: "menu-body", role: "group", "aria-label": "How it is shown" },
    channel.element,
    coloured,
    scale,
    range.element,
    sink,
    unmasked,
    table,
    large,
  );
  const viewMenu = createMenu("View", "Colours, range, mask, strongest links", controls, signal);
  const shareMenu = createMenu(
    "Share",
    "Save a file or copy a link",
    element("div", { class: "menu-body" }, save, button("Copy link", () => commands.copyLink(), { class: "copy", title: "A link to exactly this view (y)" })),
    signal,
    true,
  );
  const name = element("p", { class: "trace-name" });
  const badge = element("strong", { class: "badge", hidden: true }, "not what the model computed");
  const locationBar = element(
    "div",
    { class: "bar" },
    element("h1", {}, "AttnScope"),
    home && element("a", { href: home[0] }, `← ${home[1]}`),
    name,
    views.element,
    badge,
    ask,
    compare,
    viewMenu.element,
    shareMenu.element,
    button("Help", () => commands.help(), {
      class: "open-help",
      title: "How to read the map, and the keyboard (?)",
    }),
  );
  /** Show only the controls that have an effect in this view. */
  const showRelevantControls = ({ view, headsAs, compare: compared, scale: chosen }: State): void => {
    const [map, ratio] = [view === "map" || view === "sentence", view === "map" && compared?.mode === "ratio"];
    const text = view === "text" || view === "picture";
    for (const part of [sink, table]) part.hidden = !map;
    channel.element.hidden = text;
    // A ratio has colours of its own, and a range of its own beside it.
    for (const part of [coloured, scale, range.element]) part.hidden = text || ratio;
    if (view === "picture") coloured.hidden = false;
    if (chosen === "uniform") range.element.hidden = true;
    compare.hidden = view !== "map";
    for (const part of [channel.element, coloured, scale, range.element]) part.inert = view === "heads" && headsAs !== "grid";
  };

  const bars = element("header", { class: "bars" }, locationBar);
  return {
    element: bars,
    update(state, { meta, sentenceProblem, sinkShare, isTableOpen }) {
      showRelevantControls(state);
      unmasked.hidden = !meta || state.view === "heads" || (meta.unmasked === null && meta.origin === null);
      viewMenu.element.hidden = meta === null;
      shareMenu.element.hidden = meta === null;
      const named = meta ? formatTitle(meta.name) : "";
      if (name.textContent !== named) replaceChildren(name, element("bdi", {}, named));
      views.update(state.view);
      views.enable("sentence", sentenceProblem === null || state.view === "sentence", sentenceProblem ?? "");
      views.hide("picture", meta === null || meta.images.length === 0);
      for (const view of ["map", "text", "heads"] as const)
        views.enable(view, state.trace !== "", "There is no trace to show yet");
      const isThumbnail = state.view === "heads";
      channel.update(isThumbnail && state.channel === "both" ? "max" : state.channel);
      channel.enable("both", !isThumbnail, "Small pictures show one of the two");
      colours.value = state.colours;
      scale.value = state.scale;
      setPressed(compare, state.compare !== null);
      // Small pictures hold the largest of many weights: as bright as those of a short text.
      range.update(state, isThumbnail ? 0 : (meta?.layers[state.layer]?.keys ?? 0));
      setPressed(sink, state.hideSink);
      sink.textContent = state.hideSink && sinkShare !== null ? `First token hidden: ${formatPercent(sinkShare)}` : "Hide first token";
      setPressed(unmasked, state.unmasked);
      badge.hidden = !state.unmasked;
      setPressed(table, isTableOpen);
      setPressed(large, state.large);
    },
  };
}

function createRangeFields(
  store: Store,
  commands: AppCommands,
): { readonly element: HTMLElement; update(state: State, keys: number): void } {
  const createNumberInput = (label: string): HTMLInputElement =>
    element("input", {
      type: "number",
      min: LOWEST_BITS,
      max: HIGHEST_BITS,
      step: 0.25,
      "aria-label": label,
      class: "bits",
    });
  const low = createNumberInput("Darkest colour at, in bits");
  const high = createNumberInput("Brightest colour at, in bits");
  const applyRange = (): void => {
    const [from, to] = [low.valueAsNumber, high.valueAsNumber];
    if (Number.isFinite(from) && Number.isFinite(to)) store.set({ range: clampRange(from, to) });
    // Clamped or refused, the fields show what holds now.
    update(store.get(), keyCount);
  };
  low.addEventListener("change", applyRange);
  high.addEventListener("change", applyRange);
  let keyCount = 0;
  const update = ({ range, view }: State, keys: number): void => {
    keyCount = keys;
    const [from, to] = range ?? getDefaultRange(keys);
    low.value = String(from);
    high.value = String(to);
    reset.disabled = range === null;
    fit.hidden = view === "heads";
  };
  const reset = button("Reset", () => store.set({ range: null }), {
    title: "Back to the range that suits the length of the text",
    "aria-label": "Reset the range",
  });
  const fit = button("Fit colours", () => commands.fitRange(), {
    title: "Set the range to the values now in view, once",
  });
  const group = element(
    "div",
    { class: "range", role: "group", "aria-label": "Colour range, in powers of two" },
    element("span", { "aria-hidden": "true" }, "2^"),
    low,
    element("span", { "aria-hidden": "true" }, "to 2^"),
    high,
    fit,
    reset,
  );
  return { element: group, update };
}
