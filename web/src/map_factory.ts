/** Maps of heads as the explorer has them: what is done on one goes to the store, texts of the trace name its axes. */

import type { Host } from "./host";
import { createMapView, type Cell, type MapView } from "./map/map_view";
import { describeMap } from "./panels/live_region";
import type { Twin } from "./panels/sentence_view";
import type { Pins } from "./pins";
import type { Meta } from "./server/protocol";
import type { Traces } from "./server/trace_cache";
import type { Transport } from "./server/transport";
import type { Store } from "./state";

export interface Mapping {
  readonly store: Store;
  readonly host: Host;
  readonly transport: Transport;
  readonly traces: Traces;
  pins(): Pins;
  hovered(cell: Cell | null): void;
  drawn(): void;
}

/** `named` is the trace it shows. */
export function createMap(mapping: Mapping, named: () => Meta | undefined): MapView {
  const { store, host, transport, traces, pins, hovered, drawn } = mapping;
  const on = {
    ...{ hovered, drawn },
    moved: (centre: Cell | null, zoom: number | null) => store.set({ centre, zoom }),
    picked: ({ query, key }: Cell) => pins().toggle({ pinQuery: query, pinKey: key }),
    pickedQuery: (query: number) => pins().toggle({ pinQuery: query }),
    pickedKey: (key: number) => pins().toggle({ pinKey: key }),
  };
  const map = createMapView(transport, on, {
    host,
    tokens: (side, from, to) => {
      const meta = named();
      return meta && traces.textsOf(meta).range(store.get().layer, side, from, to);
    },
  });
  describeMap(map.element);
  return map;
}

export function createTwin(mapping: Mapping): Twin {
  let meta: Meta | undefined;
  const map = createMap(mapping, () => meta);
  map.element.setAttribute("aria-roledescription", "map of the untrained model");
  return {
    map,
    setMeta: (now) => {
      meta = now;
    },
  };
}
