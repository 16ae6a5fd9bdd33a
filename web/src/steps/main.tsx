/** Entry point of the page "One attention weight, step by step". */

import { render } from "preact";
import { createPageHost, followTheme, setLoadState } from "../host";
import { createHttpTransport } from "../server/http_transport";
import { StepsPage } from "./steps_page";

const root = document.getElementById("explorer");
if (root) {
  const labs = root.dataset["labs"]; // in the docs
  const host = createPageHost(labs === undefined ? "page" : "file");
  followTheme(root, host, new AbortController().signal);
  root.textContent = "";
  render(<StepsPage labs={labs ?? ""} transport={labs === undefined ? createHttpTransport() : null} />, root);
  setLoadState(root, host, "ready");
}
