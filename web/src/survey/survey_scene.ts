/** What the survey shows: the answer about all heads, as the parts of the view of heads take them, and the state. */

import type { ScoredHead } from "../heads/scored_heads";
import { formatScoreName } from "../heads/scored_heads";
import { formatTitle } from "../paint/token_text";
import type { HeadId, State } from "../state";
import type { SurveyInfo, Histograms } from "./protocol";

export interface SurveyScene {
  readonly state: State;
  readonly about: SurveyInfo;
  readonly statistic: string;
  readonly roster: {
    readonly heads: readonly ScoredHead[];
    readonly scores: readonly {
      readonly measures: Readonly<Record<string, string>>;
      readonly meanings: Readonly<Record<string, string>>;
    }[];
  };
  /** By their places. */
  readonly heads: ReadonlyMap<string, ScoredHead>;
  /** Of the chosen statistic, once they have come. */
  readonly histograms: Histograms | null;
}

/** The key of the address that names the statistic. */
const STATISTIC_KEY = "stat";

/** The statistic that an address asks for, if the survey has it; else its first. */
export function getStatistic({ others }: State, about: SurveyInfo): string {
  const wanted = others.find(([key]) => key === STATISTIC_KEY)?.[1];
  return (about.statistics.find(({ name }) => name === wanted) ?? about.statistics[0])?.name ?? "";
}

export function withStatistic({ others }: State, name: string): Pick<State, "others"> {
  return { others: [...others.filter(([key]) => key !== STATISTIC_KEY), [STATISTIC_KEY, name]] };
}

export function getSurveyHeadName({ layers }: SurveyInfo, [layer, head]: HeadId): string {
  return `L${layer}H${layers[layer]?.numbers[head] ?? head}`;
}

export function toScoredHeads(about: SurveyInfo): ScoredHead[] {
  return about.heads.map(({ place, labels, means }) => ({
    place,
    name: getSurveyHeadName(about, place),
    labels: labels.map((label) => formatTitle(label)),
    scores: means,
  }));
}

/** What a survey can show of a state: a head that is not there becomes the nearest, a score that is not there none. */
export function fitToSurvey(state: State, { layers, statistics }: SurveyInfo): State {
  const layer = Math.min(state.layer, layers.length - 1);
  const head = Math.min(state.head, (layers[layer]?.numbers.length ?? 1) - 1);
  const known = (name: string): boolean => statistics.some((one) => one.name === name);
  const [first = "", second = first] = statistics.map(({ name }) => name);
  const axes = state.axes.every(known) ? state.axes : ([first, second] as const);
  return { ...state, layer, head, view: "heads", axes, order: known(state.order.replace("-", "")) ? state.order : "" };
}

/** What a statistic is, as the beginning of a sentence. */
export function explainStatistic({ statistics }: SurveyInfo, name: string): string {
  const meaning = statistics.find((one) => one.name === name)?.meaning ?? "";
  const said = meaning === "" ? formatScoreName(name) : formatTitle(meaning, 400);
  return said.charAt(0).toUpperCase() + said.slice(1);
}
