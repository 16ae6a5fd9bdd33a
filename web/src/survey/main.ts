/** Entry point of the survey page. */

import { loadItem } from "../browser_storage";
import { startPage } from "../start_page";
import { createStore, readAddress } from "../state";
import { LAST_ADDRESS, openSurvey } from "./survey_page";
import { surveyPaths, type SurveyInfo } from "./protocol";

startPage(async ({ root, host, transport, signal }) => {
  const info = await transport.json<SurveyInfo>(surveyPaths.about(), signal);
  const store = createStore(readAddress(location.hash || (loadItem("session", LAST_ADDRESS) ?? "")));
  openSurvey({ root, host, transport, store, info, signal });
});
