/** Starts a page that shows what one request returns: loading, then the page, or why it cannot be loaded. */

import { createPageHost, followTheme, setLoadState, type Host } from "./host";
import { button } from "./panels/dom";
import { getStoppedMessage, showLoading, showProblem } from "./panels/messages";
import { createHttpTransport } from "./server/http_transport";
import { describeError } from "./server/requests";
import type { Transport } from "./server/transport";

export interface StartedPage {
  readonly root: HTMLElement;
  readonly host: Host;
  readonly transport: Transport;
  readonly signal: AbortSignal;
}

/** Call `open` in the element of the page; when it fails, show why, with a button that tries again. */
export function startPage(open: (page: StartedPage) => Promise<void>): void {
  const root = document.getElementById("explorer");
  if (root) void start(root, open);
}

async function start(root: HTMLElement, open: (page: StartedPage) => Promise<void>): Promise<void> {
  const host = createPageHost("page");
  const { signal } = new AbortController();
  followTheme(root, host, signal);
  setLoadState(root, host, "loading");
  showLoading(root);
  try {
    await open({ root, host, transport: createHttpTransport(), signal });
    setLoadState(root, host, "ready");
  } catch (error) {
    setLoadState(root, host, "error");
    const message = error instanceof TypeError ? getStoppedMessage(host) : describeError(error);
    showProblem(root, "No answer", message, button("Try again", () => void start(root, open), { class: "primary" }));
  }
}
