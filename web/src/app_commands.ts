/** Commands of buttons and keys that concern the whole explorer. */

import { findNextHead, getAvailableHeads, listHeads } from "./head_order";
import type { LaterScript } from "./load_later";
import type { MapView } from "./map/map_view";
import type { UndoHistory } from "./undo";
import type { HelpDialog } from "./panels/help_dialog";
import type { StrongestTable } from "./panels/strongest_table";
import type { Comparison, ViewContext } from "./panels/view_context";
import type { Meta, Session, TraceHead } from "./server/protocol";
import { clampRange, type HeadId, type State, type View } from "./state";

export interface AppCommands {
  /** Returns false, and shows a notice, where there is nothing to show. */
  showView(view: View): boolean;
  fitRange(): void;
  toggleUnmasked(): void;
  toggleTable(): void;
  compare(): void;
  swap(): void;
  toggleLarge(): void;
  export(): void;
  copyLink(): void;
  undo(): void;
  redo(): void;
  help(): void;
}

/** What the commands act on; getters for the parts that are created later. */
export interface AppCommandContext {
  readonly root: HTMLElement;
  readonly context: ViewContext;
  readonly map: MapView;
  readonly comparison: Comparison;
  readonly history: UndoHistory;
  readonly later: LaterScript;
  getShown(): TraceHead | null;
  getTable(): StrongestTable;
  getHelp(): HelpDialog;
  copyLink(place: Partial<State>): Promise<string>;
  /** Called after the table was opened or closed. */
  onTableToggle(): void;
}

/** Why no sentence can be typed; null when it can. */
export function explainNoSentence({ has_model, file }: Session): string | null {
  if (has_model) return null;
  return file
    ? "A saved page has no model to run."
    : "This session has no model to run: start one with attnscope look MODEL.";
}

function hasImages(meta: Meta | undefined): boolean {
  return meta !== undefined && meta.images.length > 0;
}

export function createAppCommands(parts: AppCommandContext): AppCommands {
  const { root, context, map, comparison, history, later, getShown, getTable, getHelp, copyLink, onTableToggle } = parts;
  const { store, session, traces, showNotice, announce } = context;

  const showView = (view: View): boolean => {
    const problem =
      view === "sentence"
        ? explainNoSentence(session)
        : store.get().trace === ""
          ? "There is nothing to show yet: type a text first."
          : view === "picture" && !hasImages(traces.getKnown(store.get().trace))
            ? "This trace has no image."
            : null;
    if (problem === null) store.set({ view }, "push");
    else showNotice(problem);
    return problem === null;
  };
  const toggleUnmasked = (): void => {
    const { trace, unmasked } = store.get();
    if ((traces.getKnown(trace)?.unmasked ?? null) === null)
      return showNotice("There is no causal mask here, or only the weights were recorded.");
    store.set({ unmasked: !unmasked }, "push");
    announce(unmasked ? "As the model computed it." : "Without the causal mask: not what the model computed.", true);
  };
  const toggleTable = (): void => {
    const open = !getTable().isOpen;
    getTable().setOpen(open);
    getTable().refresh(getShown());
    (open ? getTable().element : map.element).focus();
    onTableToggle();
    map.resize();
  };
  /** Compare with the next head, or stop comparing. */
  const compare = (): void => {
    const now = store.get();
    const heads = listHeads(getShown()?.meta.layers ?? [], getAvailableHeads(session));
    const findNear = (layers: number, within: number): HeadId | undefined => findNextHead(now, heads, layers, within);
    const place = findNear(0, 1) ?? findNear(0, -1) ?? findNear(1, 0) ?? findNear(-1, 0) ?? heads[0];
    if (!place) return;
    const other = { trace: "", layer: place[0], head: place[1], mode: "side" } as const;
    store.set({ compare: now.compare && now.view === "map" ? null : (now.compare ?? other), view: "map" }, "push");
  };
  return {
    showView,
    toggleUnmasked,
    toggleTable,
    compare,
    swap: () => store.get().compare && comparison.swap(),
    fitRange() {
      const range = map.getValueRange();
      if (range) store.set({ range: clampRange(range[0], range[1]) });
      else showNotice("No values in view yet.");
    },
    toggleLarge: () => store.set({ large: !store.get().large }),
    export() {
      const now = getShown();
      if (now) later.use((parts) => parts.openExportDialog(context, map, now, root, comparison.secondMap));
    },
    copyLink: () => void copyLink(map.getPlace() ?? {}).then(showNotice),
    undo: () => history.undo() || showNotice("Nothing to undo."),
    redo: () => history.redo() || showNotice("Nothing to redo."),
    help: () => getHelp().open(),
  };
}
