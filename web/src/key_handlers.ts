/** One handler per keyboard action. */

import type { AppCommands } from "./app_commands";
import type { AskBox } from "./ask/ask_box";
import type { TraceHead } from "./server/protocol";
import { findNextHead, listHeads } from "./head_order";
import type { Action } from "./keys";
import type { MapView } from "./map/map_view";
import type { Pins } from "./pins";
import type { HeadRankingStore } from "./questions/head_ranking";
import { CHANNELS, SCALES, type HeadId, type Store, type View } from "./state";

type MapMove = Extract<Action, `pan${string}` | `screen${string}` | `zoom${string}` | "fit" | "onePixel">;

const PAN_PIXELS = 80;
const SCREEN_SHARE = 0.8;
const ZOOM_FACTOR = Math.SQRT2;

export interface KeyHandlerContext {
  readonly store: Store;
  readonly map: MapView;
  readonly pins: Pins;
  readonly ask: AskBox;
  readonly ranking: HeadRankingStore;
  readonly commands: AppCommands;
  getShown(): TraceHead | null;
  /** The heads that can be opened; null is all heads of the trace. */
  readonly availableHeads: readonly HeadId[] | null;
  /** Focus the shown view. */
  focusView(): void;
}

/** The handlers that move a map. */
export function createMapMoves(map: MapView): Readonly<Record<MapMove, () => void>> {
  const pan = (right: number, down: number) => () => map.panBy(right * PAN_PIXELS, down * PAN_PIXELS);
  const panScreen = (right: number, down: number) => () => {
    const { width, height } = map.element.getBoundingClientRect();
    map.panBy(right * width * SCREEN_SHARE, down * height * SCREEN_SHARE);
  };
  return {
    panLeft: pan(-1, 0),
    panRight: pan(1, 0),
    panUp: pan(0, -1),
    panDown: pan(0, 1),
    screenLeft: panScreen(-1, 0),
    screenRight: panScreen(1, 0),
    screenUp: panScreen(0, -1),
    screenDown: panScreen(0, 1),
    zoomIn: () => map.zoomBy(ZOOM_FACTOR),
    zoomOut: () => map.zoomBy(1 / ZOOM_FACTOR),
    fit: () => map.fit(),
    onePixel: () => map.showOneTokenPerPixel(),
  };
}

function findNext<T>(all: readonly T[], now: T): T {
  return all[(all.indexOf(now) + 1) % all.length] ?? now;
}

export function createKeyHandlers(context: KeyHandlerContext): Readonly<Record<Action, () => void>> {
  const { store, map, pins, ask, ranking, commands } = context;
  const openView = (view: View) => (): void => {
    if (commands.showView(view)) context.focusView();
  };
  const stepBy = (layersOn: number, headsOn: number): void => {
    const next = findNextHead(store.get(), listHeads(context.getShown()?.meta.layers ?? [], context.availableHeads), layersOn, headsOn);
    if (next) store.set({ layer: next[0], head: next[1] }, "push");
  };
  /** Along the ranking, or within the layer until there is one. */
  const stepHead = (step: number) => () => {
    if (ranking.list.length === 0) return stepBy(0, step);
    const { layer, head } = store.get();
    const next = ranking.findNext(layer, head, step);
    if (next) store.set({ layer: next.layer, head: next.head }, "push");
  };
  const unpinOrLeave = (): void => {
    const { pinQuery, pinKey, region, compare, view, trace } = store.get();
    if (pinQuery !== null || pinKey !== null || region !== "") pins.unpin();
    else if (compare && view === "map") store.set({ compare: null }, "push");
    else if (view !== "map" && trace !== "") openView("map")();
  };
  return {
    ...createMapMoves(map),
    nextQuery: () => pins.step("query", 1),
    previousQuery: () => pins.step("query", -1),
    nextKey: () => pins.step("key", 1),
    previousKey: () => pins.step("key", -1),
    pin: () => pins.pinCell(map.hover ?? pins.getMiddle()),
    unpin: unpinOrLeave,
    follow: () => pins.follow(),
    back: () => pins.back(),
    undo: commands.undo,
    redo: commands.redo,
    nextHead: stepHead(1),
    previousHead: stepHead(-1),
    nextLayer: () => stepBy(1, 0),
    previousLayer: () => stepBy(-1, 0),
    showMap: openView("map"),
    showText: openView("text"),
    showHeads: openView("heads"),
    showPicture: openView("picture"),
    showSentence: openView("sentence"),
    showTable: commands.toggleTable,
    find: () => ask.focus(),
    findNext: () => ask.step(false),
    findPrevious: () => ask.step(true),
    goTo: () => ask.focus(),
    cycleChannel: () => store.set({ channel: findNext(CHANNELS, store.get().channel) }),
    cycleScale: () => store.set({ scale: findNext(SCALES, store.get().scale) }),
    toggleSink: () => store.set({ hideSink: !store.get().hideSink }),
    toggleUnmasked: commands.toggleUnmasked,
    compare: commands.compare,
    blink: commands.swap,
    toggleLarge: commands.toggleLarge,
    export: commands.export,
    copyLink: commands.copyLink,
    help: commands.help,
  };
}
