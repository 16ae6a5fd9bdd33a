/** What buttons and keys ask of the explorer as a whole. */

import { headsOf, stepped } from "./key_handlers";
import { openExport } from "./export/export_dialog";
import type { MapView } from "./map/map_view";
import type { Help } from "./panels/help_dialog";
import type { Shown } from "./panels/inspector";
import type { StrongestTable } from "./panels/strongest_table";
import type { Comparison, ViewContext } from "./panels/view_context";
import type { Session } from "./server/protocol";
import { validRange, type HeadPlace, type View } from "./state";

export interface Deeds {
  /** False where there is nothing of that kind to show; words say so. */
  showView(view: View): boolean;
  fitRange(): void;
  toggleWhatIf(): void;
  toggleTable(): void;
  compare(): void;
  swap(): void;
  export(): void;
  copyLink(): void;
  help(): void;
}

/** The parts that deeds are done with; those that are made late are asked for. */
export interface Doing {
  readonly root: HTMLElement;
  readonly context: ViewContext;
  readonly map: MapView;
  readonly comparison: Comparison;
  shown(): Shown | null;
  table(): StrongestTable;
  help(): Help;
  copyAddress(): Promise<boolean>;
  /** The table came or went. */
  changed(): void;
}

/** The only heads there are; null is all of the trace. */
export function heldBy({ file }: Session): readonly HeadPlace[] | null {
  return file?.heads ?? null;
}

/** Why no sentence can be typed; null when it can. */
export function noSentence({ live, file }: Session): string | null {
  if (live) return null;
  return file
    ? "A saved page has no model to run."
    : "This session has no model to run: start one with attnscope look MODEL.";
}

export function createDeeds(doing: Doing): Deeds {
  const { root, context, map, comparison, shown, table, help, copyAddress, changed } = doing;
  const { store, session, traces, notice, say } = context;

  const showView = (view: View): boolean => {
    const why =
      view === "sentence"
        ? noSentence(session)
        : store.get().trace === ""
          ? "There is nothing to show yet: type a text first."
          : null;
    if (why === null) store.set({ view, centre: null, zoom: null }, "push");
    else notice(why);
    return why === null;
  };
  const toggleWhatIf = (): void => {
    const { trace, whatIf } = store.get();
    if ((traces.known(trace)?.what_if ?? null) === null)
      return notice("There is no mask to take away here, or only the weights were recorded.");
    store.set({ whatIf: !whatIf }, "push");
    say(whatIf ? "As the model computed it." : "What if it could look ahead: not what the model computed.", true);
  };
  const toggleTable = (): void => {
    const open = !table().open;
    table().setOpen(open);
    table().refresh(shown());
    (open ? table().element : map.element).focus();
    changed();
    map.resize();
  };
  /** The next head beside this one; once more, and it goes. */
  const compare = (): void => {
    const now = store.get();
    const heads = headsOf(shown()?.meta.layers ?? [], heldBy(session));
    const near = (layers: number, within: number): HeadPlace | undefined => stepped(now, heads, layers, within);
    const place = near(0, 1) ?? near(0, -1) ?? near(1, 0) ?? near(-1, 0) ?? heads[0];
    if (!place) return;
    const other = { trace: "", layer: place[0], head: place[1], mode: "side" } as const;
    store.set({ compare: now.compare && now.view === "map" ? null : (now.compare ?? other), view: "map" }, "push");
  };
  return {
    showView,
    toggleWhatIf,
    toggleTable,
    compare,
    swap: () => store.get().compare && comparison.swap(),
    fitRange() {
      const range = map.valueRange();
      if (range) store.set({ range: validRange(range[0], range[1]) });
      else notice("No values in view yet.");
    },
    export() {
      const now = shown();
      if (now) openExport(context, map, now, root, comparison.twin);
    },
    copyLink: () =>
      void copyAddress().then((copied) =>
        notice(copied ? "Link copied." : "The browser did not allow copying; the link is in the address bar."),
      ),
    help: () => help().open(),
  };
}
