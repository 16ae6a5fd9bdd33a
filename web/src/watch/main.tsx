/** Entry point of the page of a watched run: loads the run, or shows why it cannot be loaded. */

import { render } from "preact";
import { createPageHost, followTheme, setLoadState } from "../host";
import { button } from "../panels/dom";
import { getStoppedMessage, showLoading, showProblem } from "../panels/messages";
import { createHttpTransport } from "../server/http_transport";
import { describeError } from "../server/requests";
import { watchPaths, type WatchInfo } from "./protocol";
import { WatchPage } from "./watch_page";

async function open(root: HTMLElement): Promise<void> {
  const host = createPageHost("page");
  const { signal } = new AbortController();
  followTheme(root, host, signal);
  setLoadState(root, host, "loading");
  showLoading(root);
  const transport = createHttpTransport();
  try {
    const first = await transport.json<WatchInfo>(watchPaths.about(), signal);
    root.textContent = "";
    render(<WatchPage context={{ host, signal }} transport={transport} first={first} />, root);
    setLoadState(root, host, "ready");
  } catch (error) {
    setLoadState(root, host, "error");
    const message = error instanceof TypeError ? getStoppedMessage(host) : describeError(error);
    showProblem(root, "No answer", message, button("Try again", () => void open(root), { class: "primary" }));
  }
}

const root = document.getElementById("explorer");
if (root) void open(root);
