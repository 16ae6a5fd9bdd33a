/** What the middle of the page can show beside the map, and what it is given to do so. */

import type { Host } from "../host";
import type { Cell, MapView } from "../map/map_view";
import type { Action } from "../keys";
import type { Pins } from "../pins";
import type { Session, TraceHead } from "../server/protocol";
import type { TraceCache } from "../server/trace_cache";
import type { Transport } from "../server/transport";
import type { State, Store } from "../state";

export interface ViewContext {
  readonly store: Store;
  readonly transport: Transport;
  readonly session: Session;
  readonly traces: TraceCache;
  readonly pins: Pins;
  readonly host: Host;
  /** A word at the foot of the page that goes by itself. */
  showNotice(text: string): void;
  /** For a screen reader; with `before`, it is said whatever comes after it. */
  announce(text: string, before?: boolean): void;
  /** Aborted when the explorer leaves the page. */
  readonly signal: AbortSignal;
}

export interface CentreView {
  readonly element: HTMLElement;
  /** On every change while it is the view, and when texts of tokens have come. */
  update(state: State, shown: TraceHead | null): void;
  /** No longer shown: stop working. */
  deactivate(): void;
  /** A key that means something of its own here; true when it was done. */
  handleAction?(action: Action): boolean;
}

/** Two heads on the map. */
export interface Comparison {
  /** Above the map: who the other is, and how the two are shown; hidden while nothing is compared. */
  readonly bar: HTMLElement;
  /** Beside the map: the second map; hidden unless two are shown. */
  readonly secondSlot: HTMLElement;
  /** On every change while the map is the view, after the map was told, and when texts of tokens have come. */
  update(state: State, shown: TraceHead | null): void;
  deactivate(): void;
  /** The second map; null unless two are shown. */
  readonly secondMap: MapView | null;
  /** The two change places. */
  swap(): void;
  /** The pair pointed at on the map. */
  onHover(cell: Cell | null): void;
}
