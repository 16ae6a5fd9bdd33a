/**
 * Undo and redo over the states of the store.
 *
 * In: its changes. Out: earlier and later states. Moves in quick succession (a wheel, a drag) are one step, and so is a
 * change with the move that follows it. Memory: at most 200 states.
 */

import { isMove, type State, type Store } from "./state";

const MAX_STEPS = 200;
const PAUSE_MILLISECONDS = 400;

export interface UndoHistory {
  /** Each returns false when there is nothing to go to. */
  undo(): boolean;
  redo(): boolean;
  close(): void;
}

export function recordHistory(store: Store, now: () => number = () => performance.now()): UndoHistory {
  let undone: State[] = [];
  let done: State[] = [];
  let isApplying = false;
  let lastChange = -Infinity;

  const close = store.subscribe((after, before, mode) => {
    if (isApplying) return;
    const isBurst = now() - lastChange < PAUSE_MILLISECONDS;
    lastChange = now();
    if (mode === "replace" || (isBurst && isMove(before, after))) return;
    done = [...done, before].slice(-MAX_STEPS);
    undone = [];
  });
  const apply = (state: State): void => {
    isApplying = true;
    lastChange = -Infinity;
    store.set(state, "replace");
    isApplying = false;
  };
  return {
    undo() {
      const state = done.pop();
      if (!state) return false;
      undone.push(store.get());
      apply(state);
      return true;
    },
    redo() {
      const state = undone.pop();
      if (!state) return false;
      done.push(store.get());
      apply(state);
      return true;
    },
    close,
  };
}
