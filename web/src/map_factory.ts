/** Creates maps that write to the store and label their axes with the tokens of a trace. */

import type { Host } from "./host";
import { CanvasMap, type Cell, type MapEvents, type MapView } from "./map/map_view";
import { setMapDescription } from "./panels/live_region";
import type { BaselineMap } from "./panels/sentence_view";
import type { Pins } from "./pins";
import type { Meta } from "./server/protocol";
import type { TraceCache } from "./server/trace_cache";
import type { PictureCache } from "./tiles/pictures";
import type { Transport } from "./server/transport";
import type { Store } from "./state";

export interface MapContext {
  readonly store: Store;
  readonly host: Host;
  readonly transport: Transport;
  readonly traces: TraceCache;
  readonly pictures: PictureCache;
  getPins(): Pins;
  onHover(cell: Cell | null): void;
  onDrawn(): void;
}

/** `getMeta` returns the trace that the map shows. */
export function createMap(context: MapContext, getMeta: () => Meta | undefined): MapView {
  const { store, host, transport, traces, pictures, getPins, onHover, onDrawn } = context;
  const events: MapEvents = {
    ...{ onHover, onDrawn },
    onMove: (place, how) => store.set(place, how),
    onPickCell: ({ query, key }: Cell) => getPins().toggle({ pinQuery: query, pinKey: key }),
    onPickQuery: (query: number) => getPins().toggle({ pinQuery: query }),
    onPickKey: (key: number) => getPins().toggle({ pinKey: key }),
  };
  const map = new CanvasMap(transport, events, {
    ...{ host, pictures },
    getTokens: (side, from, to) => {
      const meta = getMeta();
      return meta && traces.getTexts(meta).getRange(store.get().layer, side, from, to);
    },
  });
  setMapDescription(map.element);
  return map;
}

export function createBaselineMap(context: MapContext): BaselineMap {
  let meta: Meta | undefined;
  const map = createMap(context, () => meta);
  map.element.setAttribute("aria-roledescription", "map of the random-weight baseline");
  return {
    map,
    setMeta: (now) => {
      meta = now;
    },
  };
}
