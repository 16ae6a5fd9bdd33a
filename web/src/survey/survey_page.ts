/**
 * The survey page: all heads as histograms, as a table or as dots, and passages of the chosen head.
 *
 * In: the survey's info. Out: a page that follows its store and address.
 * The map of a passage opens as another page.
 */

import { syncAddress } from "../address";
import { saveItem } from "../browser_storage";
import type { HeadsActions, HeadsPart } from "../heads/heads_scene";
import { createHeadsArea } from "../heads/heads_area";
import { countLabels, formatScoreName } from "../heads/scored_heads";
import { createScatterView } from "../heads/scatter_view";
import type { Host } from "../host";
import { formatCount, pluralize } from "../format_numbers";
import { segments } from "../panels/controls";
import { button, element, field, replaceChildren, select } from "../panels/dom";
import { createLiveRegion } from "../panels/live_region";
import { createNotice } from "../panels/messages";
import { formatTitle } from "../paint/token_text";
import { describeError, LatestRequest } from "../server/requests";
import { isAbortError, type Transport } from "../server/transport";
import { DEFAULT_STATE, isSameState, writeAddress, type HeadId, type HeadsAs, type State, type Store } from "../state";
import { createHistogramGrid } from "./histogram_grid";
import { createHeadPanel } from "./head_panel";
import { surveyPaths, type Histograms, type Passage, type ReadResult, type SurveyInfo } from "./protocol";
import { explainStatistic, fitToSurvey, getStatistic, getSurveyHeadName, toScoredHeads, withStatistic, type SurveyScene } from "./survey_scene";
import { createSurveyTable } from "./survey_table";

/** The address that the way back from a map leads to. */
export const LAST_ADDRESS = "survey";

export interface SurveyOptions {
  readonly root: HTMLElement;
  readonly host: Host;
  readonly transport: Transport;
  readonly store: Store;
  readonly info: SurveyInfo;
  readonly signal: AbortSignal;
}

export function openSurvey({ root, host, transport, store, info, signal }: SurveyOptions): void {
  const context = { host, signal };
  const live = createLiveRegion(signal);
  const notice = createNotice(signal);
  const heads = toScoredHeads(info);
  const measures = Object.fromEntries(info.statistics.map(({ name, meaning }) => [name, meaning]));
  const catalog = { heads, scores: [{ measures, meanings: info.meanings }] };
  const headsById = new Map(heads.map((head) => [head.id.join(), head]));
  const histogramRequest = new LatestRequest();
  let histograms: { readonly of: string; readonly answer: Histograms | null } = { of: "", answer: null };

  const area = createHeadsArea();
  const status = element("p", { class: "heads-words soft" });
  const hover: HeadsActions["hover"] = (id, box) => {
    if (!id || !box) return area.card.hide();
    area.card.show(box, getSurveyHeadName(info, id), headsById.get(id.join()));
  };
  const choose = ([layer, head]: HeadId, statistic?: string): void => {
    const other = statistic === undefined ? {} : withStatistic(store.get(), statistic);
    store.set({ layer, head, ...other }, "push");
    const labels = headsById.get(`${layer},${head}`)?.labels ?? [];
    live.announce([getSurveyHeadName(info, [layer, head]), ...labels].join(", "));
  };
  const actions: HeadsActions = {
    choose: (id) => choose(id),
    open(id) {
      if (id) choose(id);
      else panel.focus();
    },
    hover,
    order: (order) =>
      store.set({ order, ...(order === "" ? {} : withStatistic(store.get(), order.replace("-", ""))) }),
    setAxes: (axes) => store.set({ axes }),
    enterHint: "Enter goes to its passages.",
  };
  const panel = createHeadPanel(transport, { open: (one) => openMap(one), reader: info.reader.name }, context);
  const parts: Readonly<Record<HeadsAs, HeadsPart<SurveyScene>>> = {
    grid: createHistogramGrid(context, actions),
    table: createSurveyTable({ choose, order: actions.order }),
    scatter: createScatterView(context, actions),
  };

  /** Run the model on a passage, then go to its map. */
  const openMap = async ({ passage, position }: Passage): Promise<string | null> => {
    const { layer, head } = store.get();
    try {
      if (!info.reader.ready) live.announce(`Loading ${formatTitle(info.reader.name)}, then it reads the passage.`);
      const found = await transport.post<ReadResult>(surveyPaths.read(), { passage, layer, head }, signal);
      address.flush();
      location.assign(`./${writeAddress({ ...DEFAULT_STATE, ...found, pinQuery: position })}`);
      return null;
    } catch (error) {
      return isAbortError(error) ? null : describeError(error);
    }
  };

  const as = segments<HeadsAs>(
    "Heads as",
    [
      ["grid", "Histograms", "Each head as a small distribution of the chosen statistic"],
      ["table", "Table", "Means and spreads of all statistics, in any order"],
      ["scatter", "Dots", "Each head as a dot on two means"],
    ],
    (headsAs) => store.set({ headsAs }, "push"),
  );
  const statistic = select(
    info.statistics.map(({ name }) => [name, formatScoreName(name)] as const),
    (name) => store.set(withStatistic(store.get(), name), "push"),
  );
  const label = select(
    [["", "all"] as const, ...countLabels(heads).map(([name, count]) => [name, `${name} (${count})`] as const)],
    (name) => store.set({ label: name }),
  );

  /** What the chosen form shows, in a sentence. */
  const describeView = ({ headsAs }: State, name: string): string => {
    if (headsAs === "table") return "Means over all queries ± the deviation from query to query. A column puts the heads in order; a cell shows its passages.";
    if (headsAs === "scatter") return "Each dot is a head, at the means of two statistics.";
    return `${explainStatistic(info, name)}: how it is distributed over the queries of each head. Orange, and the ground: the mean. Heights are square roots of shares.`;
  };
  const loadHistograms = (name: string): void => {
    if (histograms.of === name) return;
    histograms = { of: name, answer: null };
    void histogramRequest.run(
      (own) => transport.json<Histograms>(surveyPaths.histograms(name), own),
      (answer) => {
        histograms = { of: name, answer };
        render(store.get());
      },
      (message) => {
        histograms = { of: "", answer: null };
        status.textContent = message;
      },
    );
  };
  const render = (state: State): void => {
    const fit = fitToSurvey(state, info);
    if (!isSameState(fit, state)) return store.set(fit);
    const name = getStatistic(state, info);
    const part = parts[state.headsAs];
    area.show(part);
    status.textContent = describeView(state, name);
    if (state.headsAs === "grid") loadHistograms(name);
    const answer = histograms.of === name ? histograms.answer : null;
    const scene = { state, info, statistic: name, catalog, heads: headsById, histograms: answer };
    as.update(state.headsAs);
    statistic.value = name;
    statistic.title = explainStatistic(info, name);
    label.value = state.label;
    part.update(scene);
    panel.update(scene);
    saveItem("session", LAST_ADDRESS, writeAddress(state));
    document.title = `${getSurveyHeadName(info, [state.layer, state.head])} ${formatTitle(info.name)} - AttnScope`;
  };

  const address = syncAddress(store, host.addressBar);
  const copy = button("Copy link", () => void address.copyLink().then(notice.show), { title: "A link to exactly this view" });
  replaceChildren(
    root,
    element(
      "div",
      { class: "survey" },
      element(
        "header",
        { class: "bar" },
        element("h1", {}, "AttnScope"),
        element("p", { class: "trace-name" }, element("bdi", {}, formatTitle(info.name))),
        element("p", { class: "soft survey-corpus" }, describeCorpus(info)),
        element("div", { class: "spring" }),
        copy,
      ),
      element(
        "main",
        { class: "heads", "aria-label": "All heads" },
        element("div", { class: "heads-bar" }, as.element, field("statistic", statistic), field("label", label), area.controls),
        status,
        area.element,
      ),
      panel.element,
      live.element,
      notice.element,
    ),
  );
  const leave = store.subscribe(render);
  addEventListener("pagehide", () => address.flush(), { signal });
  signal.addEventListener("abort", () => {
    leave();
    histogramRequest.cancel();
    address.close();
  });
  render(store.get());
}

function describeCorpus({ model, corpus, problems }: SurveyInfo): string {
  const name = model.split(/[\\/]/).filter((part) => part !== "").at(-1) ?? "";
  const read = `${pluralize(corpus.documents, "document")}, ${pluralize(corpus.passages, "passage")}, ${pluralize(corpus.tokens, "token")}`;
  const broken = problems > 0 ? `; ${formatCount(problems)} could not be read` : "";
  return `${formatTitle(name, 40)} on ${read}${broken}`;
}
