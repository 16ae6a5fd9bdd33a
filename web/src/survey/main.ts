/** Where the page of a survey begins: from an empty element to all its heads, or to words that say why not. */

import { loadItem } from "../browser_storage";
import { createPageHost, followTheme, setLoadState } from "../host";
import { button } from "../panels/dom";
import { showLoading, showProblem, getStoppedMessage } from "../panels/messages";
import { createHttpTransport } from "../server/http_transport";
import { describeError } from "../server/requests";
import { createStore, readAddress } from "../state";
import { LAST_ADDRESS, openSurvey } from "./survey_page";
import { surveyPaths, type SurveyInfo } from "./protocol";

async function open(root: HTMLElement): Promise<void> {
  const host = createPageHost("page");
  const { signal } = new AbortController();
  followTheme(root, host, signal);
  setLoadState(root, host, "loading");
  showLoading(root);
  const transport = createHttpTransport();
  try {
    const info = await transport.json<SurveyInfo>(surveyPaths.about(), signal);
    const store = createStore(readAddress(location.hash || (loadItem("session", LAST_ADDRESS) ?? "")));
    openSurvey({ root, host, transport, store, info, signal });
    setLoadState(root, host, "ready");
  } catch (error) {
    setLoadState(root, host, "error");
    const says = error instanceof TypeError ? getStoppedMessage(host) : describeError(error);
    showProblem(root, "No answer", says, button("Try again", () => void open(root), { class: "primary" }));
  }
}

const root = document.getElementById("explorer");
if (root) void open(root);
