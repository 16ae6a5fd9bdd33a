/**
 * Evicts keys of the shown head from the KV cache, and shows how much attention later queries had on them.
 *
 * In: the eviction of the state. Out: another one, and numbers from the server. The weights are those of the model with
 * all pairs; the model does not run again.
 */

import { formatCount, formatPercent } from "../format_numbers";
import { DEFAULT_KEEP, POLICY_NAMES } from "../questions/evictions";
import { canEvict } from "../server/evicted_keys";
import { paths, type Evicted, type TraceHead } from "../server/protocol";
import { LatestRequest, ResponseCache } from "../server/requests";
import { clampEviction, POLICIES, type Eviction, type State } from "../state";
import { element, field, select } from "./dom";
import type { StatePanel, ViewContext } from "./view_context";

const KEEP_ALL = "";

export function createEvictionPanel({ store, transport, signal, announce }: ViewContext): StatePanel {
  const request = new LatestRequest();
  const cache = new ResponseCache(transport, 16);
  signal.addEventListener("abort", () => request.cancel());
  const createInput = (label: string, min: number, max?: number): HTMLInputElement => {
    const input = element("input", { type: "number", class: "bits", min, max, "aria-label": label });
    input.addEventListener("change", () => apply());
    return input;
  };
  const keep = createInput("Percent of the pairs to keep", 1, 100);
  const context = createInput("Evict after this token", 1);
  const policy = select(
    [[KEEP_ALL, "keep all pairs"], ...POLICIES.map((by) => [by, by] as const)],
    () => apply(),
    { "aria-label": "Eviction policy" },
  );
  const numbers = element("div", {}, field("keep %", keep), " ", field("after token", context));
  const status = element("p", { class: "soft", role: "status" });
  const lostWeight = element("p");
  const panel = element(
    "section",
    { class: "eviction", "aria-label": "KV cache", hidden: true },
    field("KV cache", policy),
    numbers,
    status,
    lostWeight,
  );
  let requested = "";

  const apply = (): void => {
    const by = POLICIES.find((known) => known === policy.value);
    const isNumber = Number.isInteger(context.valueAsNumber);
    const eviction = by && clampEviction({ by, keep: keep.valueAsNumber || DEFAULT_KEEP, context: isNumber ? context.valueAsNumber : null });
    store.set({ eviction: eviction ?? null }, "push");
  };
  const show = (evicted: Evicted, query: number | null, lost: number | null, eviction: Eviction): void => {
    context.placeholder = String(evicted.context);
    status.textContent = `${POLICY_NAMES[eviction.by]}. ${formatCount(evicted.kept)} of the first ${formatCount(evicted.context)} keys are kept.`;
    const ofQuery = lost === null || query === null ? "" : `${formatPercent(lost)} of query ${formatCount(query)}, `;
    lostWeight.textContent = `Weight on evicted keys: ${ofQuery}${formatPercent(evicted.lost)} of all later queries.`;
    announce(lostWeight.textContent);
  };
  const load = ({ meta, layer, head }: TraceHead, eviction: Eviction, pinned: number | null): void => {
    status.textContent = "reading…";
    lostWeight.textContent = "";
    void request.run(
      async (given) => {
        const evicted = await cache.json<Evicted>(paths.evicted(meta.trace, layer, head, eviction), given);
        if (pinned === null || pinned < evicted.context) return [evicted, null] as const;
        const { lost } = await cache.json<{ lost: number }>(paths.lost(meta.trace, layer, head, pinned, eviction), given);
        return [evicted, lost] as const;
      },
      ([evicted, lost]) => show(evicted, pinned, lost, eviction),
      (message) => {
        status.textContent = message;
      },
    );
  };
  return {
    element: panel,
    update({ eviction, pinQuery }: State, shown: TraceHead | null) {
      panel.hidden = !shown || !canEvict(shown.meta.layers[shown.layer]);
      policy.value = eviction?.by ?? KEEP_ALL;
      numbers.hidden = lostWeight.hidden = eviction === null;
      keep.value = String(eviction?.keep ?? DEFAULT_KEEP);
      context.value = eviction?.context ? String(eviction.context) : "";
      const wanted = panel.hidden || !eviction ? "" : JSON.stringify([shown?.meta.trace, shown?.layer, shown?.head, eviction, pinQuery]);
      if (wanted === requested) return;
      requested = wanted;
      request.cancel();
      status.textContent = "";
      if (wanted !== "" && eviction && shown) load(shown, eviction, pinQuery);
    },
  };
}
