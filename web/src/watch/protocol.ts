// The protocol of watched runs: JSON shapes and paths, relative to "api/1/".

export interface WatchStatistic {
  name: string;
  meaning: string;
  /** Whether low values are of interest; columns of several steps then have the lowest, otherwise the largest. */
  lowest: boolean;
}

export interface WatchAlert {
  number: number;
  /** The index of its head; null if that was never measured. */
  row: number | null;
  step: number;
  rule: string;
  reason: string;
  sequence: number;
  query: number;
  key: number;
  /** Whether the queries and keys of that moment were kept. */
  has_trace: boolean;
}

export interface WatchInfo {
  name: string;
  /** The first and the last measured step, if there is any. */
  steps: { count: number; first: number[]; last: number[] };
  statistics: WatchStatistic[];
  heads: { layer: string; head: number; name: string }[];
  /** The indices of all heads, the worst first. */
  order: number[];
  num_alerts: number;
  /** The last ones, oldest first. */
  alerts: WatchAlert[];
}

/** The first and the last step of a column. */
export type StepRange = readonly [first: number, last: number];

export interface WatchTable {
  steps: StepRange[];
  /** By head, then by column. */
  values: (number | null)[][];
  /** Cells in which a query or key was not finite. */
  not_finite: [row: number, column: number][];
}

export interface WatchHead {
  steps: StepRange[];
  /** By statistic, then by column. */
  values: Record<string, (number | null)[]>;
  /** Where the largest logit of each column is; -1 where there is none. */
  places: { step: number; sequence: number; query: number; key: number }[];
}

export interface OpenedAlert {
  trace: string;
  query: number;
  key: number;
}

export const watchPaths = {
  about: (): string => "watch/about",
  table: (statistic: string, columns: number): string => `watch/table?statistic=${statistic}&columns=${columns}`,
  head: (row: number, columns: number): string => `watch/heads/${row}?columns=${columns}`,
  open: (): string => "watch/open",
};
