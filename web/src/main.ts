/** Where the page begins. */

import { createHttpTransport } from "./server/http";
import { start } from "./start";

const root = document.getElementById("explorer");
if (root) void start(root, createHttpTransport());
