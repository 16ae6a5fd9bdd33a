// The protocol of the server, version 1: JSON shapes and paths. Paths are relative to "api/1/".

import type { Eviction, PictureKind } from "../state";

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
  /** The most keys that a query sees, with a sliding window; null without one, or where it is not known. */
  window: number | null;
  cross: boolean;
  has_texts: boolean;
  /** The mask of imported weights is not known: a zero counts as masked. */
  zeros_masked: boolean;
}

/** The shape of a head's matrix, and where queries stand among the keys. */
export type MatrixShape = Pick<Layer, "cross" | "offset" | "queries" | "keys">;

/** How many keys a query sees: all, with a causal mask those up to it, with a sliding window the last of them. */
export function countVisibleKeys({ causal, offset, window, keys }: Pick<Layer, "causal" | "offset" | "window" | "keys">, query: number): number {
  return Math.max(1, Math.min(keys, causal ? query + offset + 1 : keys, window ?? keys));
}

/** The index of a head in the model. */
export function getHeadNumber(meta: Meta, layer: number, head: number): number {
  return meta.layers[layer]?.numbers[head] ?? head;
}

/** The number of a layer in the model: the last one in the path of its module, where only some layers were recorded; else its index. */
export function getLayerNumber({ layers }: Meta, layer: number): number {
  let numbers = layerNumbers.get(layers);
  if (!numbers) layerNumbers.set(layers, (numbers = findLayerNumbers(layers)));
  return numbers[layer] ?? layer;
}

const layerNumbers = new WeakMap<readonly Layer[], readonly number[]>();

function findLayerNumbers(layers: readonly Layer[]): number[] {
  const numbers = layers.map(({ name }) => Number(/^(?:.*\.)?(\d{1,4})(?:\.[a-z_]+)*$/i.exec(name)?.[1] ?? NaN));
  const isRising = numbers.every((number, index) => number >= index && (index === 0 || number > (numbers[index - 1] ?? NaN)));
  return isRising ? numbers : layers.map((_, index) => index);
}

/** "L3H5": layer 3, head 5 of the model. */
export function formatHeadName(meta: Meta, layer: number, head: number): string {
  return `L${getLayerNumber(meta, layer)}H${getHeadNumber(meta, layer, head)}`;
}

export interface Meta {
  trace: string;
  name: string;
  model: string;
  /** Set where the weights are not what the model computed; drawn as a watermark. */
  note: string | null;
  unmasked: string | null;
  origin: string | null;
  images: TraceImage[];
  layers: Layer[];
}

export interface TraceImage {
  /** Its number in the forward pass. */
  image: number;
  /** The layers that have its patches. */
  layers: number[];
  /** Height and width of the photo; null where there is none. */
  size: [height: number, width: number] | null;
}

/** Where the patches of an image are among the queries or keys of a layer. */
export interface PatchSide {
  grid: [frames: number, rows: number, columns: number];
  /** The part of the photo that the patches cover, as fractions. */
  box: [left: number, top: number, right: number, bottom: number];
  /** Of each patch, row by row; -1 for those that the layer does not have. */
  positions: number[];
  special: [name: string, start: number, stop: number][];
}

export interface Patches {
  query: PatchSide | null;
  key: PatchSide | null;
}

/** A number per patch and head. */
export interface PictureMap {
  grid: [frames: number, rows: number, columns: number];
  heads: number;
  /** float32 in base64, heads x frames x rows x columns; NaN for patches that the layer does not have. */
  values: string;
  /** The weights on everything else, per head. */
  elsewhere: [name: string, shares: (number | null)[]][];
  /** Of attention rollout. */
  num_layers?: number;
}

/** A position that receives much attention, whatever the query. */
export interface Sink {
  name: string;
  position: number;
  /** The largest mean weight in a head. */
  share: number | null;
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
  /** The head that shows it; null if it is not known for this model. */
  layer: number | null;
  head: number | null;
}

export interface Session {
  version: string;
  model: string;
  has_model: boolean;
  /** Whether typed sentences are run without a trained model; `model_note` says how. */
  model_free: boolean;
  model_note: string | null;
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
  /** Whether all tokens are scored; until then the first `scored_queries` are. */
  complete: boolean;
  pending: boolean;
}

/** Half-open ranges of tokens; null stands for all of them. At least one is given. */
export interface TokenLink {
  query: readonly [start: number, stop: number] | null;
  key: readonly [start: number, stop: number] | null;
  /** Ranges of keys instead of all those of `key`: "3-5,9-11", ends excluded. */
  runs?: string | undefined;
}

/** The ranges of `TokenLink.runs`. */
export function parseRuns(runs: string): [start: number, stop: number][] {
  return runs.split(",").map((run) => run.split("-").map(Number) as [number, number]);
}

export type LinkMeasure = "weight" | "top_weight" | "received";

/** How strongly each head links some queries to some keys. */
export interface HeadLinks {
  /**
   * weight: on the keys together, the mean over the queries. top_weight: of a single key, without keys given. received: by the keys, summed
   * over all queries, without queries given.
   */
  measure: LinkMeasure;
  first_layer: number;
  /** null for a layer that lacks these positions. */
  layers: (LayerLinks | null)[];
}

export interface LayerLinks {
  /** One per head; null where the weights are not numbers. */
  values: (number | null)[];
  /** top_weight: the key that has it. received: the query that gives most. */
  positions: number[] | null;
}

/** A head with a pattern, and its strongest link that is neither to itself nor to the first token. */
export interface Finding {
  layer: number;
  head: number;
  label: string;
  meaning: string;
  score: number;
  query: number;
  key: number;
  weight: number;
}

/** Where to begin with a text. */
export interface Opening {
  pending: boolean;
  scored_queries: number;
  num_queries: number;
  /** The most distinctive head; null if no head has a label, or while pending. */
  opening: Finding | null;
  /** The best head of each label. */
  cards: Finding[];
}

/** A pair of dimensions that rotary position embeddings turn together. */
export interface RotaryPair {
  dims: [first: number, second: number];
  /** Tokens per turn. */
  period: number;
  /** Its part of q.k. */
  product: number;
}

/** How a weight was computed: exp(score - log_sum_exp), 0 where masked. */
export interface WeightReport {
  query: number;
  key: number;
  weight: number;
  /** q.k */
  dot: number;
  scale: number;
  /** What enters the softmax unless it is masked; null if it is infinite. */
  score: number | null;
  /** What position biases and the like add: score - scale * dot; null without any. */
  bias: number | null;
  masked: boolean;
  /** Of the row; null without keys. */
  log_sum_exp: number | null;
  /** q_i * k_i */
  products: number[];
  /** null where the model does not rotate queries and keys, or it is not known how. */
  frequencies: RotaryPair[] | null;
  /** |v|; null where values were not recorded. */
  value_norm: number | null;
}

/** A key of a `RowReport`. */
export interface RowKey {
  position: number;
  /** null where the texts of tokens are not known. */
  text: string | null;
  /** k */
  vector: number[];
  /** What position biases and the like add to scale * q.k; null without any. */
  bias: number | null;
  score: number | null;
  masked: boolean;
  /** As the map has it. */
  weight: number;
  /** v; null where values were not recorded. */
  value: number[] | null;
}

/** The vectors of a query and of its strongest keys. A softmax over these keys, `others` and the sink is that over all keys. */
export interface RowReport {
  query: number;
  text: string | null;
  /** q */
  vector: number[];
  scale: number;
  num_keys: number;
  visible_keys: number;
  keys: RowKey[];
  /** The other visible keys as one: their log-sum-exp, null where it is infinite, and the mean of their values by weight. */
  others: { count: number; score: number | null; value: number[] | null };
  /** The logit of the attention sink, which has no value. */
  sink: number | null;
}

/** What a head adds to the residual stream at a query. */
export interface ProjectionReport {
  /** Why there is none. */
  problem: string | null;
  output: number[] | null;
}

export interface TokenPrediction {
  /** Of this token given those before it, in nats; null for the first token. */
  surprise: number | null;
  /** Of this token among all predictions: 1 for the most likely; null for the first token. */
  rank: number | null;
  /** The most likely next tokens after this one. */
  next: [text: string, probability: number][];
}

export interface Predictions {
  pending: boolean;
  /** Why there are none. */
  problem: string | null;
  tokens: TokenPrediction[];
}

/** The keys of a context that a head keeps in the KV cache. */
export interface Evicted {
  context: number;
  kept: number;
  /** Lengths of runs of kept and evicted keys in turn, beginning with kept ones. */
  runs: number[];
  /** The weight of the queries after the context on evicted keys, as their mean. */
  lost: number;
}

export interface AblateEachRequest {
  trace: string;
  method: AblationMethod;
}

/** What ablating one head alone does to the mean loss, in nats; or why it ended. */
export type HeadEffect = { layer: number; head: number; effect: number } | { error: string };

export interface AblateRequest {
  trace: string;
  heads: readonly (readonly [layer: number, head: number])[];
  how: AblationMethod;
  /** Respond with an AblationEstimate, and ablate nothing. */
  estimate?: boolean;
}

export interface AblationEstimate {
  /** How long this ablation takes. */
  estimate_seconds: number;
  /** How long ablating every head alone takes. */
  each_seconds: number;
}

/** How ablating these heads changes the predictions of the model. */
export interface AblationResult {
  tokens: number;
  /** Nats per token. */
  loss: [before: number, after: number];
  /** Tokens that became harder to predict, with their loss in nats. */
  harder: [position: number, text: string, before: number, after: number][];
  /** How long it was expected to take. */
  estimate_seconds: number;
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

const range = (letter: string, ends: readonly [number, number] | null): string[] =>
  ends ? [`${letter}0=${ends[0]}`, `${letter}1=${ends[1]}`] : [];

const formatEviction = ({ by, keep, context }: Eviction): string => `by=${by}&keep=${keep}${context === null ? "" : `&context=${context}`}`;

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
  /** Of all layers, or of layers [first, stop). */
  findHeads: (trace: string, { query, key, runs }: TokenLink, layers?: readonly [first: number, stop: number]): string =>
    `${trace}/find_heads?` + [...range("q", query), ...(runs === undefined ? range("k", key) : [`runs=${runs}`]), ...range("l", layers ?? null)].join("&"),
  photo: (trace: string, image: number): string => `${trace}/photo?image=${image}`,
  patches: (trace: string, layer: number, image: number): string => `${trace}/${layer}/patches?image=${image}`,
  /** At most 256 positions, both ends included; null for all queries. */
  picture: (trace: string, layer: number, image: number, kind: PictureKind, positions: readonly [first: number, last: number] | null): string =>
    `${trace}/${layer}/picture?image=${image}&of=${kind}` + (positions ? `&p0=${positions[0]}&p1=${positions[1] + 1}` : ""),
  sinks: (trace: string, layer: number, image: number): string => `${trace}/${layer}/sinks?image=${image}`,
  opening: (trace: string): string => `${trace}/opening`,
  why: (trace: string, layer: number, index: number, query: number, key: number): string =>
    `${head(trace, layer, index)}/why?query=${query}&key=${key}`,
  steps: (trace: string, layer: number, index: number, query: number, key: number): string =>
    `${head(trace, layer, index)}/steps?query=${query}&key=${key}`,
  projection: (trace: string, layer: number, index: number, query: number): string => `${head(trace, layer, index)}/projection?query=${query}`,
  evicted: (trace: string, layer: number, index: number, eviction: Eviction): string => `${head(trace, layer, index)}/evicted?${formatEviction(eviction)}`,
  /** The weight of a query on evicted keys. */
  lost: (trace: string, layer: number, index: number, query: number, eviction: Eviction): string =>
    `${head(trace, layer, index)}/lost/${query}?${formatEviction(eviction)}`,
  /** At most 4,096 positions. */
  predictions: (trace: string, from: number, to: number): string => `${trace}/predictions?from=${from}&to=${to}`,
  /** A tile body of at most 64 x 64 bins of one head. */
  preview: (trace: string, layer: number, index: number, channel: Channel): string => `${head(trace, layer, index)}/preview?ch=${channel}`,
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
  ablateEach: (): string => "ablate_each",
  run: (): string => "run",
  generate: (): string => "generate",
};
