/** What the survey shows: the answer about all heads, as the parts of the view of heads take them, and the state. */

import type { Head } from "../heads/scored_heads";
import { spaced } from "../heads/scored_heads";
import { title } from "../paint/token_text";
import type { HeadPlace, State } from "../state";
import type { About, Histograms } from "./protocol";

export interface SurveyScene {
  readonly state: State;
  readonly about: About;
  readonly statistic: string;
  readonly roster: {
    readonly heads: readonly Head[];
    readonly scores: readonly {
      readonly measures: Readonly<Record<string, string>>;
      readonly meanings: Readonly<Record<string, string>>;
    }[];
  };
  /** By their places. */
  readonly heads: ReadonlyMap<string, Head>;
  /** Of the chosen statistic, once they have come. */
  readonly histograms: Histograms | null;
}

/** The key of the address that names the statistic. */
const KEY = "stat";

/** The statistic that an address asks for, if the survey has it; else its first. */
export function statisticOf({ others }: State, about: About): string {
  const wanted = others.find(([key]) => key === KEY)?.[1];
  return (about.statistics.find(({ name }) => name === wanted) ?? about.statistics[0])?.name ?? "";
}

export function withStatistic({ others }: State, name: string): Pick<State, "others"> {
  return { others: [...others.filter(([key]) => key !== KEY), [KEY, name]] };
}

export function surveyName({ layers }: About, [layer, head]: HeadPlace): string {
  return `L${layer}H${layers[layer]?.numbers[head] ?? head}`;
}

export function headsOf(about: About): Head[] {
  return about.heads.map(({ place, labels, means }) => ({
    place,
    name: surveyName(about, place),
    labels: labels.map((label) => title(label)),
    scores: means,
  }));
}

/** What a survey can show of a state: a head that is not there becomes the nearest, a score that is not there none. */
export function possible(state: State, { layers, statistics }: About): State {
  const layer = Math.min(state.layer, layers.length - 1);
  const head = Math.min(state.head, (layers[layer]?.numbers.length ?? 1) - 1);
  const known = (name: string): boolean => statistics.some((one) => one.name === name);
  const [first = "", second = first] = statistics.map(({ name }) => name);
  const axes = state.axes.every(known) ? state.axes : ([first, second] as const);
  return { ...state, layer, head, view: "heads", axes, order: known(state.order.replace("-", "")) ? state.order : "" };
}

/** What a statistic is, as the beginning of a sentence. */
export function explainedStatistic({ statistics }: About, name: string): string {
  const meaning = statistics.find((one) => one.name === name)?.meaning ?? "";
  const said = meaning === "" ? spaced(name) : title(meaning, 400);
  return said.charAt(0).toUpperCase() + said.slice(1);
}
