/** What the survey page shows: the surveyed heads and the state. */

import type { HeadsScene } from "../heads/heads_scene";
import { formatScoreName, type ScoredHead } from "../heads/scored_heads";
import { formatTitle } from "../paint/token_text";
import type { HeadId, State } from "../state";
import type { Histograms, SurveyInfo } from "./protocol";

export interface SurveyScene extends HeadsScene {
  readonly info: SurveyInfo;
  readonly statistic: string;
  /** Of the chosen statistic; null while they are loading. */
  readonly histograms: Histograms | null;
}

/** The key of the address that names the statistic. */
const STATISTIC_KEY = "stat";

/** The statistic in the address, if the survey has it; otherwise its first. */
export function getStatistic({ others }: State, info: SurveyInfo): string {
  const wanted = others.find(([key]) => key === STATISTIC_KEY)?.[1];
  return (info.statistics.find(({ name }) => name === wanted) ?? info.statistics[0])?.name ?? "";
}

export function withStatistic({ others }: State, name: string): Pick<State, "others"> {
  return { others: [...others.filter(([key]) => key !== STATISTIC_KEY), [STATISTIC_KEY, name]] };
}

export function getSurveyHeadName({ layers }: SurveyInfo, [layer, head]: HeadId): string {
  return `L${layer}H${layers[layer]?.numbers[head] ?? head}`;
}

export function toScoredHeads(info: SurveyInfo): ScoredHead[] {
  return info.heads.map(({ place, labels, means }) => ({
    id: place,
    name: getSurveyHeadName(info, place),
    labels: labels.map((label) => formatTitle(label)),
    scores: means,
  }));
}

/** What a survey can show of a state: a head that is not there becomes the nearest, a score that is not there none. */
export function fitToSurvey(state: State, { layers, statistics }: SurveyInfo): State {
  const layer = Math.min(state.layer, layers.length - 1);
  const head = Math.min(state.head, (layers[layer]?.numbers.length ?? 1) - 1);
  const isKnown = (name: string): boolean => statistics.some((one) => one.name === name);
  const [first = "", second = first] = statistics.map(({ name }) => name);
  const axes = state.axes.every(isKnown) ? state.axes : ([first, second] as const);
  return { ...state, layer, head, view: "heads", axes, order: isKnown(state.order.replace("-", "")) ? state.order : "" };
}

/** What a statistic is, as the beginning of a sentence. */
export function explainStatistic({ statistics }: SurveyInfo, name: string): string {
  const meaning = statistics.find((one) => one.name === name)?.meaning ?? "";
  const text = meaning === "" ? formatScoreName(name) : formatTitle(meaning, 400);
  return text.charAt(0).toUpperCase() + text.slice(1);
}
