/**
 * The page's address follows the store, and the store follows Back and Forward.
 *
 * Browsers refuse more than about a hundred history calls in half a minute, so replacing waits half a second
 * and gathers, and entries pushed in quick succession (a held key) become one.
 */

import { readAddress, writeAddress, type Store } from "./state";

const PAUSE = 500;

/** The part of a window this needs; tests give their own. */
export interface Place {
  readonly history: Pick<History, "replaceState" | "pushState">;
  readonly location: Pick<Location, "hash"> & { readonly href?: string };
  addEventListener(type: "popstate", listener: () => void): void;
  removeEventListener(type: "popstate", listener: () => void): void;
}

export interface Address {
  /** Write what is waiting now; before the page is left. */
  flush(): void;
  /** Put a link to exactly this on the clipboard; false where the browser does not allow it. */
  copy(): Promise<boolean>;
  close(): void;
}

export function followAddress(store: Store, place: Place, now: () => number = () => performance.now()): Address {
  let waiting: ReturnType<typeof setTimeout> | undefined;
  let lastWritten = -Infinity;
  let lastPushed = -Infinity;
  let arriving = false;

  const write = (how: "replaceState" | "pushState", state = store.get()): void => {
    clearTimeout(waiting);
    waiting = undefined;
    const address = writeAddress(state);
    if (address === place.location.hash) return;
    lastWritten = now();
    try {
      place.history[how](null, "", address);
    } catch {
      // The browser has had enough for now; the next change tries again.
    }
  };
  const later = (): void => {
    waiting ??= setTimeout(() => write("replaceState"), Math.max(0, lastWritten + PAUSE - now()));
  };
  const leave = store.subscribe((_now, before, how) => {
    if (arriving) return;
    if (how === "replace") return later();
    const together = now() - lastPushed < PAUSE;
    lastPushed = now();
    if (together) return later();
    // The entry that is left must hold the place one had moved to since.
    if (waiting !== undefined) write("replaceState", before);
    write("pushState");
  });
  const arrive = (): void => {
    clearTimeout(waiting);
    waiting = undefined;
    arriving = true;
    store.set(readAddress(place.location.hash));
    arriving = false;
  };
  place.addEventListener("popstate", arrive);
  return {
    flush: () => write("replaceState"),
    copy() {
      write("replaceState");
      return navigator.clipboard.writeText(place.location.href ?? place.location.hash).then(
        () => true,
        () => false,
      );
    },
    close() {
      clearTimeout(waiting);
      leave();
      place.removeEventListener("popstate", arrive);
    },
  };
}
