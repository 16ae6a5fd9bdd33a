/**
 * Where the explorer runs: a page of its own, a cell of a notebook, a file opened from disk, a published site.
 *
 * Offers the address, the theme and a way to save a file. A notebook has its own host; see notebook.ts.
 */

import type { AddressBar } from "./address";

export interface Host {
  readonly kind: "page" | "notebook" | "file" | "site";
  /** The address and its history; a notebook keeps them in a trait of its widget. */
  readonly addressBar: AddressBar;
  /** In a notebook the plain wheel belongs to the notebook. */
  readonly wheelZooms: "always" | "with-ctrl";
  getTheme(): "light" | "dark";
  onThemeChange(listener: () => void, signal: AbortSignal): void;
  saveFile(name: string, data: Blob): void;
}

/** The host, and a signal that is aborted when the part is removed. */
export interface HostContext {
  readonly host: Host;
  readonly signal: AbortSignal;
}

export function createPageHost(kind: "page" | "file" | "site"): Host {
  return {
    kind,
    addressBar: window,
    wheelZooms: "always",
    getTheme: () => (queryDark().matches ? "dark" : "light"),
    onThemeChange: (listener, signal) => queryDark().addEventListener("change", listener, { signal }),
    saveFile: downloadFile,
  };
}

/** Whether the system is dark. Each caller gets an object of its own: Chromium drops the event of one whose `matches` was read first. */
export function queryDark(): MediaQueryList {
  return matchMedia("(prefers-color-scheme: dark)");
}

/** Set `data-theme` of an element to the theme of the host, now and when it changes. */
export function followTheme(root: HTMLElement, host: Host, signal: AbortSignal): void {
  const apply = (): void => {
    root.dataset["theme"] = host.getTheme();
  };
  apply();
  host.onThemeChange(apply, signal);
}

/** Download a file. */
export function downloadFile(name: string, data: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.click();
  // The browser reads the URL later.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Set `data-state` on the explorer's element, and on the document where the explorer is the whole page. */
export function setLoadState(root: HTMLElement, host: Host, state: "loading" | "ready" | "error"): void {
  const parts = host.kind === "notebook" ? [root] : [root, root.ownerDocument.documentElement];
  for (const part of parts) part.dataset["state"] = state;
}
