/** The interface of views in the middle of the page, and what they are given. */

import type { Host } from "../host";
import type { Cell, MapView } from "../map/map_view";
import type { Action } from "../keys";
import type { Pins } from "../pins";
import type { Session, TraceHead } from "../server/protocol";
import type { TraceCache } from "../server/trace_cache";
import type { PictureCache } from "../tiles/pictures";
import type { Transport } from "../server/transport";
import type { State, Store } from "../state";

export interface ViewContext {
  readonly store: Store;
  readonly transport: Transport;
  readonly session: Session;
  readonly traces: TraceCache;
  readonly pictures: PictureCache;
  readonly pins: Pins;
  readonly host: Host;
  /** Show a short message at the bottom of the page. */
  showNotice(text: string): void;
  /** Announce to screen readers; with `before`, even if another text follows. */
  announce(text: string, before?: boolean): void;
  /** Aborted when the explorer leaves the page. */
  readonly signal: AbortSignal;
}

export interface CentreView {
  readonly element: HTMLElement;
  /** Called on every change while it is the view, and when token texts are loaded. */
  update(state: State, shown: TraceHead | null): void;
  /** Called when the view is hidden: cancel requests. */
  deactivate(): void;
  /** Handle a key that has its own meaning here; returns true when it was handled. */
  handleAction?(action: Action): boolean;
}

/** A part of the side panel that follows the state. */
export interface StatePanel {
  readonly element: HTMLElement;
  update(state: State, shown: TraceHead | null): void;
}

/** What the first heatmap does not need, loaded by a script of its own on a served page. */
export interface Later {
  createTextView(context: ViewContext): CentreView;
  createHeadsView(context: ViewContext): CentreView;
  createPictureView(context: ViewContext): CentreView;
  createEvictionPanel(context: ViewContext): StatePanel;
  openExportDialog(context: ViewContext, map: MapView, shown: TraceHead, root: HTMLElement, secondMap: MapView | null): void;
}

/** Two heads on the map. */
export interface Comparison {
  /** Above the map: chooses the second head and the mode; hidden while nothing is compared. */
  readonly bar: HTMLElement;
  /** Beside the map: the second map; hidden unless two are shown. */
  readonly secondSlot: HTMLElement;
  /** Called on every change of the map view, after the map is updated, and when token texts are loaded. */
  update(state: State, shown: TraceHead | null): void;
  deactivate(): void;
  /** The second map; null unless two are shown. */
  readonly secondMap: MapView | null;
  /** Swap the two heads. */
  swap(): void;
  /** Called with the hovered pair of the map. */
  onHover(cell: Cell | null): void;
}
