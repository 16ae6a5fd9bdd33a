/** Heads that are ablated when the model runs again. */

import type { ViewContext } from "../panels/view_context";
import type { Session } from "../server/protocol";
import { MAX_ABLATED, type HeadId, type State } from "../state";
import { includesHead, toggleHead } from "./scored_heads";

/** Whether the model of this session can run the shown text again; the example comes from another model. */
export function canAblate(session: Session, { trace }: State): boolean {
  return session.can_ablate && trace !== session.example;
}

/** Ablate a head or restore it; returns whether it is ablated afterwards. */
export function toggleAblation({ store, showNotice }: ViewContext, id: HeadId): boolean {
  const ablated = toggleHead(store.get().ablated, id);
  if (ablated.length > MAX_ABLATED) showNotice(`At most ${MAX_ABLATED} heads can be ablated at once.`);
  else store.set({ ablated }, "push");
  return includesHead(store.get().ablated, id);
}
