/** One head and one statistic: its numbers, its distribution, and passages that show what it does. */

import { badge } from "../heads/label_badge";
import { formatScoreName } from "../heads/scored_heads";
import type { HostContext } from "../host";
import { formatCount, formatMeasure, formatPercent } from "../format_numbers";
import { themes } from "../paint/surface";
import { prepareSurface } from "../paint/canvas";
import { element, replaceChildren } from "../panels/dom";
import { formatTitle } from "../paint/token_text";
import { LatestRequest } from "../server/requests";
import type { Transport } from "../server/transport";
import { formatValue, getChartBox, paintDistribution, type Distribution } from "./histogram";
import { createPassageLists, type PassageActions } from "./passages";
import { surveyPaths, type SurveyHeadReport } from "./protocol";
import { explainStatistic, type SurveyScene } from "./survey_scene";

const CHART = 132;
const FACTS: readonly (readonly [name: string, key: string, says: string])[] = [
  ["mean", "mean", "Over all queries that tell it"],
  ["± standard error", "standard_error", "Of the mean, from passage to passage"],
  ["standard deviation", "std", "From query to query"],
  ["median", "p50", "Half of the queries have less"],
  ["5% have less than", "p05", "The lower end of the bar under the histogram"],
  ["5% have more than", "p95", "The upper end of the bar under the histogram"],
  ["minimum", "min", "Of any query"],
  ["maximum", "max", "Of any query"],
  ["queries", "count", "Those that tell it"],
  ["passages", "passages", "That have such queries"],
];

export interface HeadPanel {
  readonly element: HTMLElement;
  update(scene: SurveyScene): void;
  focus(): void;
}

export function createHeadPanel(transport: Transport, actions: PassageActions, context: HostContext): HeadPanel {
  const heading = element("h2", { tabindex: -1 });
  const labels = element("p", { class: "survey-labels" });
  const meaning = element("p", { class: "soft" });
  const canvas = element("canvas", { class: "chart", role: "img" });
  canvas.style.height = `${CHART}px`;
  const caption = element("p", { class: "caption soft" });
  const facts = element("dl", { class: "facts" });
  const lists = element("div", { class: "passage-lists" });
  const content = element("div", {}, canvas, caption, facts, lists);
  const status = element("p", { class: "soft", role: "status" });
  const request = new LatestRequest();
  let requested = "";
  let shown: Distribution | null = null;

  const paint = (): void => {
    const width = canvas.clientWidth;
    const surface = width > 0 ? prepareSurface(canvas, width, CHART) : null;
    if (surface && shown) paintDistribution(surface, themes[context.host.getTheme()], shown);
  };
  const describe = (bar: number | null): void => {
    const low = shown?.edges[bar ?? -1];
    const high = shown?.edges[(bar ?? -1) + 1];
    caption.textContent =
      bar === null || low === undefined || high === undefined
        ? "Share of queries, on a scale of square roots. Orange: the mean, and below it nine tenths of all queries."
        : `${formatMeasure(low)} to ${formatMeasure(high)}: ${formatPercent(shown?.shares[bar] ?? 0)} of queries`;
  };
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    const box = getChartBox(canvas.clientWidth, CHART);
    const bars = shown?.shares.length ?? 0;
    const bar = Math.floor(((offsetX - box.left) / box.width) * bars);
    describe(bar >= 0 && bar < bars ? bar : null);
  });
  canvas.addEventListener("pointerleave", () => describe(null));
  const observer = new ResizeObserver(paint);
  observer.observe(canvas);
  context.signal.addEventListener("abort", () => observer.disconnect());
  context.host.onThemeChange(paint, context.signal);

  const show = ({ numbers, edges, shares, examples }: SurveyHeadReport, name: string): void => {
    const { p05, p95 } = numbers;
    const known = shares.length > 0;
    shown = known
      ? { edges, shares, mean: numbers["mean"], middle: p05 === undefined || p95 === undefined ? null : [p05, p95] }
      : null;
    status.textContent = known ? "" : "No query of this corpus tells it of this head.";
    status.hidden = known;
    content.hidden = !known;
    canvas.setAttribute("aria-label", `The distribution of ${name}; its numbers are listed below`);
    replaceChildren(
      facts,
      ...FACTS.filter(([, key]) => numbers[key] !== undefined).map(([label, key, says]) => {
        const value = numbers[key] ?? 0;
        const whole = key === "count" || key === "passages";
        return element("div", { title: says }, element("dt", {}, label), element("dd", {}, whole ? formatCount(value) : formatValue(value)));
      }),
    );
    replaceChildren(lists, ...createPassageLists(examples, actions));
    describe(null);
    paint();
  };
  const load = ({ state: { layer, head }, statistic }: SurveyScene): void => {
    status.textContent = "reading…";
    status.hidden = false;
    content.classList.add("stale");
    void request.run(
      (signal) => transport.json<SurveyHeadReport>(surveyPaths.head([layer, head], statistic), signal),
      (report) => {
        show(report, formatScoreName(statistic));
        content.classList.remove("stale");
      },
      (message) => {
        requested = "";
        content.hidden = true;
        status.textContent = message;
        content.classList.remove("stale");
      },
    );
  };
  return {
    element: element(
      "aside",
      { class: "survey-head", "aria-label": "The chosen head", tabindex: 0 },
      ...[heading, labels, meaning, status, content],
    ),
    update(scene) {
      const { state: now, statistic, info } = scene;
      const head = scene.heads.get(`${now.layer},${now.head}`);
      const name = `${head?.name ?? ""}: ${formatScoreName(statistic)}`;
      if (heading.textContent !== name) heading.textContent = name;
      replaceChildren(labels, ...(head?.labels ?? []).map((one) => badge(one, formatTitle(info.meanings[one] ?? "", 400))));
      meaning.textContent = `${explainStatistic(info, statistic)}. In ${formatTitle(info.layers[now.layer]?.name ?? "", 80)}.`;
      const wanted = `${now.layer}/${now.head}/${statistic}`;
      if (wanted === requested) return;
      requested = wanted;
      load(scene);
    },
    focus: () => heading.focus(),
  };
}
