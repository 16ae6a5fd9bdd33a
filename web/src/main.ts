/** Entry point of the whole explorer as one script: starts it in a saved file, and exports `render` for notebooks. */

import { createPageHost } from "./host";
import { later } from "./later";
import { render } from "./notebook";
import { createFileTransport } from "./server/file_transport";
import { startExplorer } from "./start_explorer";

const root = document.getElementById("explorer");
if (root?.dataset["attnscope"] === "file") {
  const answers = document.getElementById("attnscope-answers")?.textContent ?? "";
  void startExplorer(root, createFileTransport(answers), createPageHost("file"), () => Promise.resolve(later));
}

export default { render };
