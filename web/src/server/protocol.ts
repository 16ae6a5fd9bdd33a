// What the server says, version 1: the JSON shapes and the paths. Paths are relative to "api/1/".

export type Side = "query" | "key";
export type Channel = "mean" | "max";
export type MarginalKind = "received" | "entropy";

export interface Layer {
  name: string;
  heads: number;
  /** What the model calls each head, where only some of them were recorded. */
  numbers: number[];
  queries: number;
  keys: number;
  causal: boolean;
  /** keys - queries: query i may see keys up to i + offset when causal. */
  offset: number;
  cross: boolean;
  texts: boolean;
  /** Of weights that somebody else has built nobody knows the mask: a zero counts as hidden. */
  zeros_hidden: boolean;
}

/** The number by which a person knows a head. */
export function headNumber(meta: Meta, layer: number, head: number): number {
  return meta.layers[layer]?.numbers[head] ?? head;
}

export interface Meta {
  trace: string;
  name: string;
  model: string;
  /** Set when the picture is not what the model computed; drawn as a watermark. */
  note: string | null;
  what_if: string | null;
  origin: string | null;
  layers: Layer[];
}

export interface Summary {
  trace: string;
  name: string;
  tokens: number;
  layers: number;
  heads: number;
}

export interface Preset {
  text: string;
  note: string;
}

export interface Session {
  version: string;
  model: string;
  live: boolean;
  limit: number;
  presets: Preset[];
  traces: Summary[];
  untrained: boolean;
  generates: boolean;
}

export interface Status {
  coarse: "ready" | "building" | "absent";
  progress: number | null;
}

/** position, importance in 0..1, text */
export type Section = [position: number, importance: number, text: string];

export interface Found {
  position: number | null;
  count: number;
  index: number;
}

export interface QueryReport {
  position: number;
  seen: number;
  entropy: number;
  effective: number;
  distance: number;
  first_token: number;
  strongest: [key: number, weight: number][];
}

export interface KeyReport {
  position: number;
  audience: number;
  received: number;
  strongest: [query: number, weight: number][];
}

export interface Profile {
  edges: number[];
  mass: number[];
  ahead: number[];
  rows_seen: number;
  rows: number;
}

export interface Scores {
  labels: { name: string; meaning: string }[];
  scores: Record<string, number>;
  pending: boolean;
}

export interface GenerateRequest {
  text: string;
  count: number;
  temperature: number;
  seed: number;
  layer: number;
  head: number;
}

export type GenerateEvent =
  | { prompt: string[] }
  | { token: string; position: number; row: number[] }
  | { done: true; text: string; trace: string }
  | { error: string };

const head = (trace: string, layer: number, index: number): string => `${trace}/${layer}/${index}`;

export const paths = {
  session: (): string => "session",
  meta: (trace: string): string => `${trace}/meta`,
  tokens: (trace: string, layer: number, side: Side, from: number, to: number): string =>
    `${trace}/${layer}/tokens?side=${side}&from=${from}&to=${to}`,
  sections: (trace: string, layer: number, side: Side): string => `${trace}/${layer}/sections?side=${side}`,
  find: (trace: string, layer: number, side: Side, text: string, after: number, backward: boolean): string =>
    `${trace}/${layer}/find?side=${side}&text=${encodeURIComponent(text)}&after=${after}&backward=${backward ? 1 : 0}`,
  tile: (trace: string, layer: number, index: number, z: number, y: number, x: number, channel: Channel): string =>
    `${head(trace, layer, index)}/${z}/${y}/${x}?ch=${channel}`,
  marginal: (trace: string, layer: number, index: number, kind: MarginalKind, z: number, block: number): string =>
    `${head(trace, layer, index)}/marginal/${kind}/${z}/${block}`,
  status: (trace: string, layer: number, index: number): string => `${head(trace, layer, index)}/status`,
  row: (trace: string, layer: number, index: number, query: number): string => `${head(trace, layer, index)}/row/${query}`,
  column: (trace: string, layer: number, index: number, key: number): string => `${head(trace, layer, index)}/col/${key}`,
  cells: (trace: string, layer: number, index: number, i0: number, i1: number, j0: number, j1: number): string =>
    `${head(trace, layer, index)}/cells?i0=${i0}&i1=${i1}&j0=${j0}&j1=${j1}`,
  query: (trace: string, layer: number, index: number, query: number): string => `${head(trace, layer, index)}/query/${query}`,
  key: (trace: string, layer: number, index: number, key: number): string => `${head(trace, layer, index)}/key/${key}`,
  profile: (trace: string, layer: number, index: number): string => `${head(trace, layer, index)}/profile`,
  scores: (trace: string, layer: number, index: number): string => `${head(trace, layer, index)}/scores`,
  run: (): string => "run",
  generate: (): string => "generate",
};
