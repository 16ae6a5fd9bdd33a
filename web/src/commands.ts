/** What each key does, in terms of the map, the store and the panels. */

import type { Finder } from "./panels/finder";
import type { Shown } from "./panels/inspector";
import type { Action } from "./keys";
import type { MapView } from "./map/map_view";
import type { Pins } from "./pins";
import { CHANNELS, type Store, type View } from "./state";

const STEP = 80;
const SCREEN = 0.8;
const ZOOM = Math.SQRT2;

export interface Commanded {
  readonly store: Store;
  readonly map: MapView;
  readonly pins: Pins;
  readonly finder: Finder;
  shown(): Shown | null;
  showView(view: View): void;
  toggleWhatIf(): void;
  toggleTable(): void;
  copyLink(): void;
  help(): void;
}

export function commandsOf(app: Commanded): Readonly<Record<Action, () => void>> {
  const { store, map, pins, finder } = app;
  const pan = (right: number, down: number) => () => map.panBy(right * STEP, down * STEP);
  const screen = (right: number, down: number) => () => {
    const { width, height } = map.element.getBoundingClientRect();
    map.panBy(right * width * SCREEN, down * height * SCREEN);
  };
  const choose = (layersOn: number, headsOn: number) => () => {
    const layers = app.shown()?.meta.layers ?? [];
    const now = store.get();
    const layer = within(now.layer + layersOn, layers.length);
    store.set({ layer, head: within(now.head + headsOn, layers[layer]?.heads ?? 1) }, "push");
  };
  const unpinOrLeave = (): void => {
    const { pinQuery, pinKey, view, trace } = store.get();
    if (pinQuery !== null || pinKey !== null) pins.unpin();
    else if (view !== "map" && trace !== "") app.showView("map");
  };
  const cycleChannel = (): void => {
    const next = CHANNELS[(CHANNELS.indexOf(store.get().channel) + 1) % CHANNELS.length];
    if (next) store.set({ channel: next });
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
    showMap: () => app.showView("map"),
    showSentence: () => app.showView("sentence"),
    showTable: () => app.toggleTable(),
    find: () => finder.focusFind(),
    findNext: () => finder.step(false),
    findPrevious: () => finder.step(true),
    goTo: () => finder.focusGoTo(),
    cycleChannel,
    toggleLinear: () => store.set({ linear: !store.get().linear }),
    toggleSink: () => store.set({ hideSink: !store.get().hideSink }),
    toggleWhatIf: () => app.toggleWhatIf(),
    copyLink: () => app.copyLink(),
    help: () => app.help(),
  };
}

function within(index: number, count: number): number {
  return Math.max(0, Math.min(count - 1, index));
}
