// The protocol of the server, version 1: JSON shapes and paths. Paths are relative to "api/1/".

export type Side = "query" | "key";
export type Channel = "mean" | "max";
export type MarginalKind = "received" | "entropy";
export type Unit = "token" | "word";
export type BlockFormat = "npy" | "csv";
export type AblationMethod = "zero" | "mean";

export interface Layer {
  name: string;
  heads: number;
  /** The index of each head in the model, where only some heads were recorded. */
  numbers: number[];
  queries: number;
  keys: number;
  causal: boolean;
  /** keys - queries: with a causal mask, query i attends to keys up to i + offset. */
  offset: number;
  cross: boolean;
  has_texts: boolean;
  /** The mask of imported weights is not known: a zero counts as masked. */
  zeros_masked: boolean;
}

/** The shape of a head's matrix, and where queries stand among the keys. */
export type MatrixShape = Pick<Layer, "cross" | "offset" | "queries" | "keys">;

/** The index of a head in the model. */
export function getHeadNumber(meta: Meta, layer: number, head: number): number {
  return meta.layers[layer]?.numbers[head] ?? head;
}

/** "L3H5": layer 3, head 5. */
export function formatHeadName(meta: Meta, layer: number, head: number): string {
  return `L${layer}H${getHeadNumber(meta, layer, head)}`;
}

export interface Meta {
  trace: string;
  name: string;
  model: string;
  /** Set where the weights are not what the model computed; drawn as a watermark. */
  note: string | null;
  unmasked: string | null;
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
  has_model: boolean;
  max_tokens: number;
  presets: Preset[];
  traces: Summary[];
  has_baseline: boolean;
  can_generate: boolean;
  /** Whether heads can be ablated, which needs a model that predicts the next token. */
  can_ablate: boolean;
  /** The trace that AttnScope ships; it is not among `traces`. */
  example: string | null;
  /** Whether a survey is open, which has its own page. */
  survey: boolean;
  /** Whether a watched run is open, which has its own page. */
  watch: boolean;
  /** Set for a saved page, which has only these heads. */
  file: { heads: [layer: number, head: number][] } | null;
}

/** The page of a survey or of a watched run, if one is open: where it is, and its name. */
export function getHome({ survey, watch }: Session): readonly [href: string, name: string] | null {
  return survey ? ["survey", "Survey"] : watch ? ["watch", "Run"] : null;
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
  visible_keys: number;
  entropy: number;
  effective_keys: number;
  mean_distance: number;
  first_token: number;
  strongest: [key: number, weight: number][];
}

export interface KeyReport {
  position: number;
  visible_queries: number;
  received: number;
  strongest: [query: number, weight: number][];
}

export interface DistanceProfile {
  edges: number[];
  mass: number[];
  ahead: number[];
  sampled_rows: number;
  rows: number;
}

export interface Scores {
  labels: { name: string; meaning: string }[];
  scores: Record<string, number>;
  pending: boolean;
}

/** The attention that a token or word gives (side=query) or receives (side=key). */
export interface Links {
  /** The tokens of the token or word: [start, stop). */
  span: [start: number, stop: number];
  /** The sum over all links, also those that are not listed. */
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

/** Labels and scores of all heads of a layer. */
export interface LayerScores {
  /** The number of scored tokens, and of all tokens. */
  scored_queries: number;
  num_queries: number;
  heads: HeadScores[];
  /** What each label means. */
  meanings: Record<string, string>;
  /** What each score measures: labels and scores share names. */
  measures: Record<string, string>;
  pending: boolean;
}

export interface AblateRequest {
  trace: string;
  heads: readonly (readonly [layer: number, head: number])[];
  how: AblationMethod;
}

/** How ablating these heads changes the predictions of the model. */
export interface AblationResult {
  tokens: number;
  /** Nats per token. */
  loss: [before: number, after: number];
  /** Tokens that became harder to predict, with their loss in nats. */
  harder: [position: number, text: string, before: number, after: number][];
  /** Next tokens whose probability has changed most. */
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
  /** A page in one file: a range of a head, pins (null: none), and the address fragment it opens with. */
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
