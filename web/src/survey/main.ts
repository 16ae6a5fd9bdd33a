/** Where the page of a survey begins: from an empty element to all its heads, or to words that say why not. */

import { createPageHost, report } from "../host";
import { button } from "../panels/dom";
import { showLoading, showProblem, stopped } from "../panels/messages";
import { createHttpTransport } from "../server/http_transport";
import { told } from "../server/requests";
import { createStore, readAddress } from "../state";
import { openSurvey, remembered } from "./survey_page";
import { surveyPaths, type About } from "./protocol";

async function open(root: HTMLElement): Promise<void> {
  const host = createPageHost("page");
  const { signal } = new AbortController();
  const follow = (): void => {
    root.dataset["theme"] = host.theme();
  };
  follow();
  host.onTheme(follow, signal);
  report(root, host, "loading");
  showLoading(root);
  const transport = createHttpTransport();
  try {
    const about = await transport.json<About>(surveyPaths.about(), signal);
    const store = createStore(readAddress(location.hash || remembered()));
    openSurvey({ root, host, transport, store, about, signal });
    report(root, host, "ready");
  } catch (error) {
    report(root, host, "error");
    const says = error instanceof TypeError ? stopped(host) : told(error);
    showProblem(root, "No answer", says, button("Try again", () => void open(root), { class: "primary" }));
  }
}

const root = document.getElementById("explorer");
if (root) void open(root);
