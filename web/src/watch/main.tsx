/** Entry point of the page of a watched run. */

import { render } from "preact";
import { startPage } from "../start_page";
import { watchPaths, type WatchInfo } from "./protocol";
import { WatchPage } from "./watch_page";

startPage(async ({ root, host, transport, signal }) => {
  const first = await transport.json<WatchInfo>(watchPaths.about(), signal);
  root.textContent = "";
  render(<WatchPage context={{ host, signal }} transport={transport} first={first} />, root);
});
