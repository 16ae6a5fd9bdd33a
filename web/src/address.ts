/**
 * Keeps the address of the page and the store in step, also on Back and Forward.
 *
 * Browsers allow about a hundred history calls in half a minute. So replacing waits half a second,
 * and entries pushed in quick succession (a held key) become one. All moves in a row are one entry.
 */

import { isMove, readAddress, writeAddress, type State, type Store } from "./state";

const PAUSE_MILLISECONDS = 500;

/** The part of a window that this needs; tests pass their own. */
export interface AddressBar {
  readonly history: Pick<History, "replaceState" | "pushState">;
  readonly location: Pick<Location, "hash"> & { readonly href?: string };
  addEventListener(type: "popstate", listener: () => void): void;
  removeEventListener(type: "popstate", listener: () => void): void;
}

export interface Address {
  /** Write pending changes now, before the page is left. */
  flush(): void;
  /** Put a link to this state on the clipboard, with a place in the map; resolves to a message for the reader. */
  copyLink(place?: Partial<State>): Promise<string>;
  close(): void;
}

export function syncAddress(store: Store, addressBar: AddressBar, now: () => number = () => performance.now()): Address {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let lastWritten = -Infinity;
  let lastPushed = -Infinity;
  let isApplying = false;
  /** The newest entry was added by a move. */
  let hasMoved = false;

  const write = (mode: "replaceState" | "pushState", state = store.get()): void => {
    clearTimeout(timer);
    timer = undefined;
    const address = writeAddress(state);
    if (address === addressBar.location.hash) return;
    lastWritten = now();
    try {
      addressBar.history[mode](null, "", address);
    } catch {
      // Too many calls; the next change tries again.
    }
  };
  const writeLater = (): void => {
    timer ??= setTimeout(() => write("replaceState"), Math.max(0, lastWritten + PAUSE_MILLISECONDS - now()));
  };
  const unsubscribe = store.subscribe((after, before, mode) => {
    if (isApplying) return;
    const isPlace = isMove(before, after);
    const isBurst = now() - lastPushed < PAUSE_MILLISECONDS;
    if (!isPlace && mode === "push") lastPushed = now();
    if (mode === "replace" || (isPlace && hasMoved) || isBurst) return writeLater();
    hasMoved = isPlace;
    // The entry before must keep the place that the reader has moved to since.
    if (timer !== undefined) write("replaceState", before);
    write("pushState");
  });
  const applyAddress = (): void => {
    clearTimeout(timer);
    timer = undefined;
    hasMoved = false;
    isApplying = true;
    store.set(readAddress(addressBar.location.hash), "replace");
    isApplying = false;
  };
  addressBar.addEventListener("popstate", applyAddress);
  return {
    flush: () => write("replaceState"),
    copyLink(place) {
      write("replaceState", { ...store.get(), ...place });
      return navigator.clipboard.writeText(addressBar.location.href ?? addressBar.location.hash).then(
        () => "Link copied.",
        () => "The browser did not allow copying; the link is in the address bar.",
      );
    },
    close() {
      clearTimeout(timer);
      unsubscribe();
      addressBar.removeEventListener("popstate", applyAddress);
    },
  };
}
