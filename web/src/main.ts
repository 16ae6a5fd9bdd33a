/** Entry point: starts the explorer on a page or in a saved file, and exports `render` for notebooks. */

import { createPageHost } from "./host";
import { render } from "./notebook";
import { createFileTransport } from "./server/file_transport";
import { createHttpTransport } from "./server/http_transport";
import { startExplorer } from "./start_explorer";

const root = document.getElementById("explorer");
const kind = root?.dataset["attnscope"];
if (root && (kind === "page" || kind === "file")) {
  const answers = document.getElementById("attnscope-answers")?.textContent ?? "";
  void startExplorer(root, kind === "file" ? createFileTransport(answers) : createHttpTransport(), createPageHost(kind));
}

export default { render };
