/** Entry point of the survey page: loads the survey, or shows why it cannot be loaded. */

import { loadItem } from "../browser_storage";
import { createPageHost, followTheme, setLoadState } from "../host";
import { button } from "../panels/dom";
import { getStoppedMessage, showLoading, showProblem } from "../panels/messages";
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
    const message = error instanceof TypeError ? getStoppedMessage(host) : describeError(error);
    showProblem(root, "No answer", message, button("Try again", () => void open(root), { class: "primary" }));
  }
}

const root = document.getElementById("explorer");
if (root) void open(root);
