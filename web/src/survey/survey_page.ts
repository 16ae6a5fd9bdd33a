/**
 * A survey: all heads as histograms, as a table or as dots, and beside them what one of them does in which passages.
 *
 * In: what the server says of the survey. Out: a page that follows its store, whose address names all that is shown.
 * The map of a passage is another page, to which it leads.
 */

import { syncAddress } from "../address";
import { placeCard } from "../heads/hover_card";
import type { HeadsActions } from "../heads/heads_view";
import { countLabels, formatScoreName } from "../heads/scored_heads";
import { createScatterView } from "../heads/scatter_view";
import { badge } from "../heads/head_table";
import type { Host } from "../host";
import { formatCount, formatMeasure, pluralize } from "../format_numbers";
import { segments } from "../panels/controls";
import { button, element, field, replaceChildren, select } from "../panels/dom";
import { createLiveRegion } from "../panels/live_region";
import { createNotice } from "../panels/messages";
import { formatTitle } from "../paint/token_text";
import { LatestRequest, describeError } from "../server/requests";
import { isAbortError, type Transport } from "../server/transport";
import { DEFAULT_STATE, isSameState, writeAddress, type HeadId, type HeadsAs, type State, type Store } from "../state";
import { createHistogramGrid } from "./histogram_grid";
import { createHeadPanel } from "./head_panel";
import { surveyPaths, type SurveyInfo, type Histograms, type Passage, type ReadResult } from "./protocol";
import { explainStatistic, toScoredHeads, fitToSurvey, getStatistic, getSurveyHeadName, withStatistic, type SurveyScene } from "./survey_scene";
import { createSurveyTable } from "./table";

export interface SurveyPart {
  readonly element: HTMLElement;
  readonly controls?: HTMLElement;
  update(scene: SurveyScene): void;
}

export interface SurveyOptions {
  readonly root: HTMLElement;
  readonly host: Host;
  readonly transport: Transport;
  readonly store: Store;
  readonly about: SurveyInfo;
  readonly signal: AbortSignal;
}

const CARD_WIDTH = 280;

export function openSurvey({ root, host, transport, store, about, signal }: SurveyOptions): void {
  const around = { host, signal };
  const live = createLiveRegion(signal);
  const notice = createNotice(signal);
  const heads = toScoredHeads(about);
  const measures = Object.fromEntries(about.statistics.map(({ name, meaning }) => [name, meaning]));
  const roster = { heads, scores: [{ measures, meanings: about.meanings }] };
  const byPlace = new Map(heads.map((head) => [head.place.join(), head]));
  const latest = new LatestRequest();
  let scene: SurveyScene | null = null;
  let histograms: { readonly of: string; readonly answer: Histograms | null } = { of: "", answer: null };

  const stage = element("div", { class: "heads-stage" });
  const controls = element("span");
  const words = element("p", { class: "heads-words soft" });
  const card = element("div", { class: "heads-card", "aria-hidden": "true", hidden: true });
  const hover: HeadsActions["hover"] = (place, box) => {
    card.hidden = !place || !box;
    if (!place || !box) return;
    const head = byPlace.get(place.join());
    const scores = Object.entries(head?.scores ?? {}).map(([name, value]) =>
      element("div", {}, element("dt", {}, formatScoreName(name)), element("dd", {}, formatMeasure(value))),
    );
    replaceChildren(
      card,
      element("strong", {}, getSurveyHeadName(about, place)),
      element("p", {}, ...(head?.labels ?? []).map((one) => badge(one, ""))),
      element("dl", { class: "facts" }, ...scores),
    );
    placeCard(card, stage, box, CARD_WIDTH);
  };
  const choose = ([layer, head]: HeadId, statistic?: string): void => {
    const other = statistic === undefined ? {} : withStatistic(store.get(), statistic);
    store.set({ layer, head, ...other }, "push");
    const labels = byPlace.get(`${layer},${head}`)?.labels ?? [];
    live.announce([getSurveyHeadName(about, [layer, head]), ...labels].join(", "));
  };
  const actions: HeadsActions = {
    choose: (place) => choose(place),
    open(place) {
      if (place) choose(place);
      else panel.focus();
    },
    hover,
    silence: () => false,
    order: (order) =>
      store.set({ order, ...(order === "" ? {} : withStatistic(store.get(), order.replace("-", ""))) }),
    axes: (axes) => store.set({ axes }),
    enterHint: "Enter goes to its passages.",
  };
  const panel = createHeadPanel(transport, { open: (one) => openMap(one), reader: about.reader.name }, around);
  const parts: Readonly<Record<HeadsAs, SurveyPart>> = {
    grid: createHistogramGrid(around, actions),
    table: createSurveyTable({ choose, order: actions.order }),
    scatter: createScatterView(around, actions),
  };

  /** The model reads the passage; then the map of it is the page. */
  const openMap = async ({ passage, position }: Passage): Promise<string | null> => {
    const { layer, head } = store.get();
    try {
      if (!about.reader.ready) live.announce(`Loading ${formatTitle(about.reader.name)}, then it reads the passage.`);
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
    about.statistics.map(({ name }) => [name, formatScoreName(name)] as const),
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
    return `${explainStatistic(about, name)}: how it is distributed over the queries of each head. Orange, and the ground: the mean. Heights are square roots of shares.`;
  };
  const askHistograms = async (name: string): Promise<void> => {
    if (histograms.of === name) return;
    const own = latest.start();
    histograms = { of: name, answer: null };
    try {
      const answer = await transport.json<Histograms>(surveyPaths.histograms(name), own);
      if (own.aborted) return;
      histograms = { of: name, answer };
      render(store.get());
    } catch (error) {
      if (isAbortError(error) || own.aborted) return;
      histograms = { of: "", answer: null };
      words.textContent = describeError(error);
    }
  };
  const render = (state: State): void => {
    const fit = fitToSurvey(state, about);
    if (!isSameState(fit, state)) return store.set(fit);
    const name = getStatistic(state, about);
    const part = parts[state.headsAs];
    if (part.element.parentElement !== stage) {
      hover(null, null);
      replaceChildren(stage, part.element, card);
      replaceChildren(controls, part.controls);
    }
    words.textContent = describeView(state, name);
    if (state.headsAs === "grid") void askHistograms(name);
    const answer = histograms.of === name ? histograms.answer : null;
    scene = { state, about, statistic: name, roster, heads: byPlace, histograms: answer };
    as.update(state.headsAs);
    statistic.value = name;
    statistic.title = explainStatistic(about, name);
    label.value = state.label;
    part.update(scene);
    panel.update(scene);
    remember(state);
    document.title = `${getSurveyHeadName(about, [state.layer, state.head])} ${formatTitle(about.name)} - AttnScope`;
  };

  const address = syncAddress(store, host.addressBar);
  const copy = button("Copy link", () =>
    void address.copy().then((copied) =>
      notice.show(copied ? "Link copied." : "The browser did not allow copying; the link is in the address bar."),
    ), { title: "A link to exactly this view" });
  replaceChildren(
    root,
    element(
      "div",
      { class: "survey" },
      element(
        "header",
        { class: "bar" },
        element("h1", {}, "AttnScope"),
        element("p", { class: "trace-name" }, element("bdi", {}, formatTitle(about.name))),
        element("p", { class: "soft survey-corpus" }, describeCorpus(about)),
        element("div", { class: "spring" }),
        copy,
      ),
      element(
        "main",
        { class: "heads", "aria-label": "All heads" },
        element("div", { class: "heads-bar" }, as.element, field("statistic", statistic), field("label", label), controls),
        words,
        stage,
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
    latest.cancel();
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

const REMEMBERED = "attnscope.survey";

/** Where one was, for the way back from the map. */
function remember(state: State): void {
  try {
    sessionStorage.setItem(REMEMBERED, writeAddress(state));
  } catch {
    // Storage refused, as in private windows: the way back begins anew.
  }
}

export function remembered(): string {
  try {
    return sessionStorage.getItem(REMEMBERED) ?? "";
  } catch {
    return "";
  }
}
