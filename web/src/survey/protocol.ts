// The protocol of surveys: JSON shapes and paths, relative to "api/1/".

import type { HeadId } from "../state";

export interface Statistic {
  name: string;
  meaning: string;
}

export interface SurveyedHead {
  place: HeadId;
  labels: string[];
  /** Of every statistic that is defined for some query. */
  means: Record<string, number>;
  /** Standard deviations over queries. */
  spread: Record<string, number>;
}

export interface SurveyInfo {
  name: string;
  model: string;
  corpus: { documents: number; passages: number; tokens: number };
  /** Files and lines that could not be read. */
  problems: number;
  statistics: Statistic[];
  /** What each label means. */
  meanings: Record<string, string>;
  layers: { name: string; numbers: number[] }[];
  heads: SurveyedHead[];
  /** The model that runs passages: whether it is loaded, and why it could not be. */
  reader: { name: string; ready: boolean; problem: string | null };
}

/** One statistic of all heads, as shares of their queries between the edges; empty where it is defined for no query. */
export interface Histograms {
  edges: number[];
  shares: number[][][];
}

export interface Passage {
  kind: "top" | "decile";
  decile: number | null;
  /** The mean over its queries. */
  score: number;
  /** The token of its strongest query; null where it was not stored. */
  position: number | null;
  passage: number;
  file: string;
  start: number;
  offset: number;
  tokens: number;
  before: string;
  marked: string;
  after: string;
  /** Whether more stands before and after. */
  cut: [boolean, boolean];
}

export interface SurveyHeadReport {
  numbers: Partial<Record<string, number>>;
  edges: number[];
  shares: number[];
  examples: Passage[];
}

export interface ReadResult {
  trace: string;
  layer: number;
  head: number;
}

export const surveyPaths = {
  about: (): string => "survey/about",
  histograms: (statistic: string): string => `survey/histograms?statistic=${statistic}`,
  head: ([layer, head]: HeadId, statistic: string): string => `survey/${layer}/${head}?statistic=${statistic}`,
  read: (): string => "survey/read",
};
