/** Entry point of the page "One attention weight, step by step". */

import { render } from "preact";
import { createPageHost, followTheme, setLoadState } from "../host";
import { StepsPage } from "./steps_page";

const root = document.getElementById("explorer");
if (root) {
  const host = createPageHost("file");
  followTheme(root, host, new AbortController().signal);
  root.textContent = "";
  render(<StepsPage labs={root.dataset["labs"] ?? ""} />, root);
  setLoadState(root, host, "ready");
}
