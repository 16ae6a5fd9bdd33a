// What the server says, version 1: the JSON shapes and the paths. Paths are relative to "api/1/".

export type Side = "query" | "key";
export type Channel = "mean" | "max";
export type MarginalKind = "received" | "entropy";
export type Unit = "token" | "word";
export type BlockFormat = "npy" | "csv";
export type AblationMethod = "zero" | "mean";

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

/** The shape of a head's matrix, and where queries stand among the keys. */
export type MatrixShape = Pick<Layer, "cross" | "offset" | "queries" | "keys">;

/** The number by which a person knows a head. */
export function getHeadNumber(meta: Meta, layer: number, head: number): number {
  return meta.layers[layer]?.numbers[head] ?? head;
}

/** A head as people write it. */
export function formatHeadName(meta: Meta, layer: number, head: number): string {
  return `L${layer}H${getHeadNumber(meta, layer, head)}`;
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

/** Names a head of a trace. */
export interface HeadRef {
  trace: string;
  layer: number;
  head: number;
}

/** A head of a trace whose meta is loaded. */
export interface TraceHead {
  readonly meta: Meta;
  readonly layer: number;
  readonly head: number;
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
  /** Whether heads can be silenced: there is a model that writes, and so can be asked what comes next. */
  ablates: boolean;
  /** The trace that AttnScope brings along; it is not among `traces`. */
  example: string | null;
  /** Whether a survey is open, which is a page of its own. */
  survey: boolean;
  /** A saved page holds these heads alone. */
  file: { heads: [layer: number, head: number][] } | null;
}

export interface Status {
  coarse: "ready" | "building" | "absent";
  progress: number | null;
}

/** position, importance in 0..1, text */
export type Section = [position: number, importance: number, text: string];

export interface FindResult {
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

export interface DistanceProfile {
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

/** What a token or word gives (side=query) or receives (side=key). */
export interface Links {
  /** The tokens of the token or word that was asked about: [start, stop). */
  own: [start: number, stop: number];
  /** What it gives or receives in all, also beyond what is listed. */
  total: number;
  /** How many tokens or words the mask allows. */
  count: number;
  /** Strongest first, without zeros. */
  links: [start: number, stop: number, weight: number][];
}

export interface HeadScores {
  labels: string[];
  scores: Record<string, number>;
}

/** All heads of a layer in words and numbers. */
export interface LayerScores {
  /** Tokens that were scored, of so many. */
  queries: number;
  of: number;
  heads: HeadScores[];
  /** What each label is. */
  meanings: Record<string, string>;
  /** What each score is: labels and scores share names. */
  measures: Record<string, string>;
  pending: boolean;
}

export interface AblateRequest {
  trace: string;
  heads: readonly (readonly [layer: number, head: number])[];
  how: AblationMethod;
}

/** What it does to the predictions of the model that these heads are silent. */
export interface AblationResult {
  tokens: number;
  /** Nats a token. */
  loss: [before: number, after: number];
  /** Tokens that became harder to predict, by how much; nats of surprise. */
  harder: [position: number, text: string, before: number, after: number][];
  /** What may come next: the tokens whose probability has changed most. */
  next: [text: string, before: number, after: number][];
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
  text: (trace: string, layer: number, side: Side, from: number, to: number): string =>
    `${trace}/${layer}/text?side=${side}&from=${from}&to=${to}`,
  words: (trace: string, layer: number, side: Side): string => `${trace}/${layer}/words?side=${side}`,
  links: (trace: string, layer: number, index: number, side: Side, place: number, unit: Unit, most = 2000): string =>
    `${head(trace, layer, index)}/links/${side}/${place}?unit=${unit}&most=${most}`,
  /** A tile body of all heads of a layer, one below the other: `header.y` rows each. */
  thumbs: (trace: string, layer: number, channel: Channel): string => `${trace}/${layer}/thumbs?ch=${channel}`,
  heads: (trace: string, layer: number): string => `${trace}/${layer}/heads`,
  block: (trace: string, layer: number, index: number, i0: number, i1: number, j0: number, j1: number, as: BlockFormat): string =>
    `${head(trace, layer, index)}/block?i0=${i0}&i1=${i1}&j0=${j0}&j1=${j1}&as=${as}`,
  /** A page in one file: this part of this head, these pins (null: none), opened at this address fragment. */
  page: (
    trace: string,
    layer: number,
    index: number,
    [i0, i1, j0, j1]: readonly [i0: number, i1: number, j0: number, j1: number],
    query: number | null,
    key: number | null,
    at: string,
  ): string =>
    `${head(trace, layer, index)}/page?i0=${i0}&i1=${i1}&j0=${j0}&j1=${j1}` +
    (query === null ? "" : `&query=${query}`) +
    (key === null ? "" : `&key=${key}`) +
    `&at=${encodeURIComponent(at)}`,
  ablate: (): string => "ablate",
  run: (): string => "run",
  generate: (): string => "generate",
};
