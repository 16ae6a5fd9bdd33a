/** Entry point of the served page, which loads `later.ts` as a second script. */

import { createPageHost } from "./host";
import type { Later } from "./panels/view_context";
import { createHttpTransport } from "./server/http_transport";
import { startExplorer } from "./start_explorer";

const root = document.getElementById("explorer");
const loadLater = async (): Promise<Later> => (await import("./later")).later;
if (root) void startExplorer(root, createHttpTransport(), createPageHost("page"), loadLater);
