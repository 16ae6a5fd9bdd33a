/**
 * The page's address follows the store, and the store follows Back and Forward.
 *
 * Browsers refuse more than about a hundred history calls in half a minute, so replacing waits half a second
 * and gathers, and entries pushed in quick succession (a held key) become one.
 */

import { readAddress, writeAddress, type Store } from "./state";

const PAUSE_MILLISECONDS = 500;

/** The part of a window this needs; tests give their own. */
export interface AddressBar {
  readonly history: Pick<History, "replaceState" | "pushState">;
  readonly location: Pick<Location, "hash"> & { readonly href?: string };
  addEventListener(type: "popstate", listener: () => void): void;
  removeEventListener(type: "popstate", listener: () => void): void;
}

export interface Address {
  /** Write what is waiting now; before the page is left. */
  flush(): void;
  /** Put a link to this state on the clipboard; resolves to a message for the reader. */
  copyLink(): Promise<string>;
  close(): void;
}

export function syncAddress(store: Store, place: AddressBar, now: () => number = () => performance.now()): Address {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let lastWritten = -Infinity;
  let lastPushed = -Infinity;
  let isApplying = false;

  const write = (mode: "replaceState" | "pushState", state = store.get()): void => {
    clearTimeout(timer);
    timer = undefined;
    const address = writeAddress(state);
    if (address === place.location.hash) return;
    lastWritten = now();
    try {
      place.history[mode](null, "", address);
    } catch {
      // The browser has had enough for now; the next change tries again.
    }
  };
  const writeLater = (): void => {
    timer ??= setTimeout(() => write("replaceState"), Math.max(0, lastWritten + PAUSE_MILLISECONDS - now()));
  };
  const unsubscribe = store.subscribe((_now, before, how) => {
    if (isApplying) return;
    if (how === "replace") return writeLater();
    const together = now() - lastPushed < PAUSE_MILLISECONDS;
    lastPushed = now();
    if (together) return writeLater();
    // The entry that is left must hold the place one had moved to since.
    if (timer !== undefined) write("replaceState", before);
    write("pushState");
  });
  const applyAddress = (): void => {
    clearTimeout(timer);
    timer = undefined;
    isApplying = true;
    store.set(readAddress(place.location.hash));
    isApplying = false;
  };
  place.addEventListener("popstate", applyAddress);
  return {
    flush: () => write("replaceState"),
    copyLink() {
      write("replaceState");
      return navigator.clipboard.writeText(place.location.href ?? place.location.hash).then(
        () => "Link copied.",
        () => "The browser did not allow copying; the link is in the address bar.",
      );
    },
    close() {
      clearTimeout(timer);
      unsubscribe();
      place.removeEventListener("popstate", applyAddress);
    },
  };
}
