/** What each key does, in terms of the map, the store and the panels. */

import type { Deeds } from "./app_commands";
import type { Finder } from "./panels/finder";
import type { Shown } from "./panels/inspector";
import type { Action } from "./keys";
import type { MapView } from "./map/map_view";
import type { Pins } from "./pins";
import { CHANNELS, holds, type HeadPlace, type Store, type View } from "./state";

type Move = Extract<Action, `pan${string}` | `screen${string}` | `zoom${string}` | "fit" | "onePixel">;

const STEP = 80;
const SCREEN = 0.8;
const ZOOM = Math.SQRT2;

export interface Commanded {
  readonly store: Store;
  readonly map: MapView;
  readonly pins: Pins;
  readonly finder: Finder;
  readonly deeds: Deeds;
  shown(): Shown | null;
  /** The only heads there are; null is all of the trace. */
  readonly held: readonly HeadPlace[] | null;
  /** Give the keyboard to what is shown. */
  focus(): void;
}

/** The keys that move a map. */
export function movesOf(map: MapView): Readonly<Record<Move, () => void>> {
  const pan = (right: number, down: number) => () => map.panBy(right * STEP, down * STEP);
  const screen = (right: number, down: number) => () => {
    const { width, height } = map.element.getBoundingClientRect();
    map.panBy(right * width * SCREEN, down * height * SCREEN);
  };
  return {
    panLeft: pan(-1, 0),
    panRight: pan(1, 0),
    panUp: pan(0, -1),
    panDown: pan(0, 1),
    screenLeft: screen(-1, 0),
    screenRight: screen(1, 0),
    screenUp: screen(0, -1),
    screenDown: screen(0, 1),
    zoomIn: () => map.zoomBy(ZOOM),
    zoomOut: () => map.zoomBy(1 / ZOOM),
    fit: () => map.fit(),
    onePixel: () => map.oneTokenPerPixel(),
  };
}

export function commandsOf(app: Commanded): Readonly<Record<Action, () => void>> {
  const { store, map, pins, finder, deeds } = app;
  const show = (view: View) => (): void => {
    if (deeds.showView(view)) app.focus();
  };
  const choose = (layersOn: number, headsOn: number) => () => {
    const next = stepped(store.get(), headsOf(app.shown()?.meta.layers ?? [], app.held), layersOn, headsOn);
    if (next) store.set({ layer: next[0], head: next[1] }, "push");
  };
  const unpinOrLeave = (): void => {
    const { pinQuery, pinKey, compare, view, trace } = store.get();
    if (pinQuery !== null || pinKey !== null) pins.unpin();
    else if (compare && view === "map") store.set({ compare: null }, "push");
    else if (view !== "map" && trace !== "") show("map")();
  };
  const cycleChannel = (): void => {
    const next = CHANNELS[(CHANNELS.indexOf(store.get().channel) + 1) % CHANNELS.length];
    if (next) store.set({ channel: next });
  };
  return {
    ...movesOf(map),
    nextQuery: () => pins.step("query", 1),
    previousQuery: () => pins.step("query", -1),
    nextKey: () => pins.step("key", 1),
    previousKey: () => pins.step("key", -1),
    pin: () => pins.pinCell(map.hover ?? pins.middle()),
    unpin: unpinOrLeave,
    follow: () => pins.follow(),
    back: () => pins.back(),
    nextHead: choose(0, 1),
    previousHead: choose(0, -1),
    nextLayer: choose(1, 0),
    previousLayer: choose(-1, 0),
    showMap: show("map"),
    showText: show("text"),
    showHeads: show("heads"),
    showSentence: show("sentence"),
    showTable: deeds.toggleTable,
    find: () => finder.focusFind(),
    findNext: () => finder.step(false),
    findPrevious: () => finder.step(true),
    goTo: () => finder.focusGoTo(),
    cycleChannel,
    toggleLinear: () => store.set({ linear: !store.get().linear }),
    toggleSink: () => store.set({ hideSink: !store.get().hideSink }),
    toggleWhatIf: deeds.toggleWhatIf,
    compare: deeds.compare,
    blink: deeds.swap,
    export: deeds.export,
    copyLink: deeds.copyLink,
    help: deeds.help,
  };
}

/** All heads, or those of them that are held. */
export function headsOf(
  layers: readonly { readonly heads: number }[],
  held: readonly HeadPlace[] | null,
): readonly HeadPlace[] {
  const all = layers.flatMap(({ heads }, layer) => Array.from({ length: heads }, (_, head) => [layer, head] as const));
  return all.filter(([layer, head]) => holds(held, layer, head));
}

/** The nearest head further on, along the layers or within one; undefined at the end. */
export function stepped(
  now: { readonly layer: number; readonly head: number },
  heads: readonly HeadPlace[],
  layersOn: number,
  headsOn: number,
): HeadPlace | undefined {
  const far = ([layer, head]: HeadPlace): readonly [number, number] => [layer - now.layer, head - now.head];
  const ahead = heads.filter((place) => {
    const [layers, within] = far(place);
    return layersOn === 0 ? layers === 0 && within * headsOn > 0 : layers * layersOn > 0;
  });
  // A layer further counts more than any number of heads.
  const distance = (place: HeadPlace): number => Math.abs(far(place)[0]) * 1e7 + Math.abs(far(place)[1]);
  return ahead.sort((one, other) => distance(one) - distance(other))[0];
}
