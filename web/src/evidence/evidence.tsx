/**
 * The right-hand panel: everything exact about the pinned link, its query, its key, and the head.
 *
 * In: the shown head, what is pinned, and the ranking of heads. Out: sections; pins and heads through the actions.
 * Responses are cached; a newer request cancels the older one of its kind.
 */

import { render, type JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { formatCount, formatOrdinal, formatWeight, formatWeightColumn, pluralize } from "../format_numbers";
import type { HostContext } from "../host";
import { element } from "../panels/dom";
import { describeCell, describeToken } from "../panels/live_region";
import { computeRank, type Rank } from "../panels/ranking";
import { Sentence } from "../panels/ranking_panel";
import { formatHeadName, paths, type DistanceProfile, type Finding, type KeyReport, type Predictions, type QueryReport, type Scores, type Side, type TraceHead, type WeightReport } from "../server/protocol";
import type { Link } from "../questions/head_question";
import type { RankedHead } from "../questions/head_ranking";
import type { Positions } from "../questions/parse_question";
import { describeLink } from "../questions/sentences";
import { ResponseCache } from "../server/requests";
import { readFloats } from "../server/tile_codec";
import type { Transport } from "../server/transport";
import { writeTraceAddress } from "../steps/trace_address";
import { HeadSection } from "./head_section";
import { findPassage } from "./passage";
import { listKeyFacts, listQueryFacts, PinSection, type PinReport, type Weights } from "./pin_section";
import { PredictionSection } from "./predictions";
import { useResponse, type Response } from "./use_response";
import { ValueWeighted } from "./value_weighted";
import { Why } from "./why_weight";

export interface EvidenceActions {
  pin(side: Side, position: number): void;
  unpin(side: Side): void;
  follow(): void;
  back(): void;
  canGoBack(): boolean;
  chooseHead(layer: number, head: number): void;
  getText(side: Side, position: number): string | undefined;
  announce(text: string): void;
}

export interface EvidenceInput {
  readonly shown: TraceHead | null;
  /** The pinned tokens; null where nothing is pinned. */
  readonly link: Link | null;
  /** Whether the links of the pins are listed here; other views list them themselves. */
  readonly isFull: boolean;
  /** The note about the pins, from the address. */
  readonly note: string;
  /** All heads by the pinned link, strongest first; null while nothing is ranked. */
  readonly ranked: readonly RankedHead[] | null;
  /** What the head was chosen for, if it is one of those to begin with. */
  readonly found: Finding | null;
}

export class Evidence {
  readonly element: HTMLElement;
  readonly #content = element("div", { class: "evidence" });
  readonly #cache: ResponseCache;
  #input: EvidenceInput = { shown: null, link: null, isFull: true, note: "", ranked: null, found: null };
  #rendered = "";
  /** The query last reported on, for following. */
  report: QueryReport | null = null;

  constructor(
    transport: Transport,
    private readonly actions: EvidenceActions,
    private readonly context: HostContext,
    /** More sections about the head. */
    more: readonly HTMLElement[] = [],
  ) {
    this.#cache = new ResponseCache(transport);
    this.element = element(
      "aside",
      { class: "inspector", "aria-label": "Evidence", tabindex: 0 },
      element("h2", { class: "visually-hidden" }, "Evidence"),
      this.#content,
      ...more,
    );
    context.signal.addEventListener("abort", () => render(null, this.#content));
  }

  /** Called on every change of the state; renders only what changed. */
  show(input: EvidenceInput): void {
    const { shown, link, isFull, note, ranked, found } = input;
    const first = ranked?.slice(0, MAX_RANKED);
    const name = JSON.stringify([shown?.meta.trace, shown?.layer, shown?.head, link, isFull, note, first, found, this.actions.canGoBack()]);
    if (name === this.#rendered) return;
    [this.#input, this.#rendered] = [input, name];
    this.element.hidden = shown === null;
    this.refreshNames();
  }

  /** Token texts have arrived. */
  refreshNames(): void {
    const { shown } = this.#input;
    const setReport = (report: QueryReport | null): void => {
      this.report = report;
    };
    const parts = { actions: this.actions, context: this.context, cache: this.#cache, setReport };
    render(shown && <Sections {...this.#input} {...parts} shown={shown} />, this.#content);
  }
}

interface SectionsOptions extends EvidenceInput {
  readonly shown: TraceHead;
  readonly actions: EvidenceActions;
  readonly context: HostContext;
  readonly cache: ResponseCache;
  setReport(report: QueryReport | null): void;
}

interface QueryData {
  readonly report: QueryReport;
  readonly side: PinReport;
}

function Sections(options: SectionsOptions): JSX.Element {
  const { shown, link, isFull, note, ranked, found, actions, context, cache, setReport } = options;
  const { meta, layer, head } = shown;
  const { query = null, key = null } = link ?? {};
  const { trace } = meta;
  const info = meta.layers[layer];
  const { getText, pin, unpin } = actions;
  const { host } = context;

  const queryPath = query === null || !isFull ? null : paths.query(trace, layer, head, query.first);
  const queryData = useResponse<QueryData>(queryPath, async (signal) => {
    const [report, weights] = await Promise.all([
      cache.json<QueryReport>(queryPath ?? "", signal),
      loadWeights(cache, paths.row(trace, layer, head, query?.first ?? 0), signal),
    ]);
    const side = { position: report.position, facts: listQueryFacts(report, info?.cross ?? false), weights, strongest: report.strongest };
    return { report, side };
  });
  const keyPath = key === null || !isFull ? null : paths.key(trace, layer, head, key.first);
  const keyData = useResponse<PinReport>(keyPath, async (signal) => {
    const [report, weights] = await Promise.all([
      cache.json<KeyReport>(keyPath ?? "", signal),
      loadWeights(cache, paths.column(trace, layer, head, key?.first ?? 0), signal),
    ]);
    return { position: report.position, facts: listKeyFacts(report), weights, strongest: report.strongest };
  });
  const cellPath =
    query === null || key === null || !isFull
      ? null
      : paths.cells(trace, layer, head, query.first, query.last + 1, key.first, key.last + 1);
  const cell = useResponse(cellPath, async (signal) => {
    const body = await cache.bytes(cellPath ?? "", signal);
    return body ? sumWeights(readFloats(body)) : NaN;
  });
  const scores = useResponse(
    paths.scores(trace, layer, head),
    async (signal) => {
      const path = paths.scores(trace, layer, head);
      const found = await cache.json<Scores>(path, signal);
      if (found.pending) cache.forget(path);
      return found;
    },
    ({ pending }) => pending,
  );
  const profile = useResponse(info?.cross ? null : paths.profile(trace, layer, head), (signal) =>
    cache.json<DistanceProfile>(paths.profile(trace, layer, head), signal),
  );
  const place = query === null || info?.cross ? null : query.last + (info?.offset ?? 0);
  const predictionPath = place === null ? null : paths.predictions(trace, place, Math.min(place + 2, info?.keys ?? 0));
  const predictions = useResponse(
    predictionPath,
    async (signal) => {
      const found = await cache.json<Predictions>(predictionPath ?? "", signal);
      if (found.pending) cache.forget(predictionPath ?? "");
      return found;
    },
    ({ pending }) => pending,
  );

  const known = queryData.isStale ? null : queryData.value;
  useLayoutEffect(() => setReport(known?.report ?? null), [known]);
  const getRank = (): Rank | null => {
    if (!known || cell.value === null || key === null || isSpan(link)) return null;
    return computeRank(key.first, cell.value, known.side.weights, known.report.strongest);
  };
  const isCellKnown = !cell.isStale && cell.value !== null && (known !== null || queryData.problem !== null);
  useLayoutEffect(() => {
    if (isCellKnown && query !== null && key !== null) actions.announce(announceCell(cell.value ?? NaN, getRank(), known, query.first, key.first, getText));
    else if (known && key === null) actions.announce(announceQuery(known.report, getText));
  }, [isCellKnown && cellPath, known]);

  const queryReport: Response<PinReport> = { ...queryData, value: queryData.value?.side ?? null };
  const pinned = { host, getText, pin, unpin };
  const strongest = known?.report.strongest.slice(0, 8).map(([position]) => position) ?? [];
  return (
    <>
      {isFull && query === null && key === null && <Invitation />}
      {note !== "" && (
        <section class="note" aria-label="Note in the link">
          <h3>Note in the link</h3>
          <p>{note}</p>
        </section>
      )}
      {cellPath !== null && link && query && key && (
        <section class="cell-panel" aria-label="Pinned cell">
          <Cell shown={shown} link={link} weight={cell} rank={getRank()} seen={known?.report.visible_keys} getText={getText} />
          {!isSpan(link) && (
            <Why
              lesson={host.kind === "page" ? `/steps${writeTraceAddress({ trace, layer, head, query: query.first, key: key.first })}` : null}
              path={paths.why(trace, layer, head, query.first, key.first)}
              load={(path, signal) => cache.json<WeightReport>(path, signal)}
            />
          )}
        </section>
      )}
      {isFull && ranked && ranked.length > 0 && <RankedHeads shown={shown} ranked={ranked} chooseHead={actions.chooseHead} />}
      {place !== null && (
        <PredictionSection
          response={predictions}
          position={place}
          query={getText("key", place)}
          following={getText("key", place + 1)}
          keys={listKeyTexts(key, place, getText)}
        />
      )}
      {isFull && query !== null && (
        <PinSection
          {...pinned}
          side="query"
          positions={query}
          other={key?.first ?? null}
          response={queryReport}
          buttons={
            <>
              <button type="button" title="Go to the token this one attends to most (f)" onClick={() => actions.follow()}>
                Follow
              </button>
              <button type="button" title="Back where you followed from (b)" disabled={!actions.canGoBack()} onClick={() => actions.back()}>
                Back
              </button>
            </>
          }
        >
          <ValueWeighted
            paths={strongest.map((position) => paths.why(trace, layer, head, query.first, position))}
            load={(path, signal) => cache.json<WeightReport>(path, signal)}
            getPassage={(position) => findPassage((at) => getText("key", at), position, position, 12)}
            onChoose={(position) => pin("key", position)}
          />
        </PinSection>
      )}
      {isFull && key !== null && <PinSection {...pinned} side="key" positions={key} other={query?.first ?? null} response={keyData} />}
      <HeadSection shown={shown} found={found} scores={scores} profile={profile} host={host} />
    </>
  );
}

function Invitation(): JSX.Element {
  return (
    <section class="empty">
      <h3>Nothing pinned</h3>
      <p>Click a cell of the map to see its exact weight. Click a label on the left for all that one token attends to, or on top for all that attends to it.</p>
      <p class="soft">With the keyboard: . and , step through the queries, Enter pins, f follows, ? lists the rest.</p>
    </section>
  );
}

interface CellOptions {
  readonly shown: TraceHead;
  readonly link: Link;
  readonly weight: Response<number>;
  readonly rank: Rank | null;
  readonly seen: number | undefined;
  getText(side: Side, position: number): string | undefined;
}

function Cell({ shown: { meta, layer }, link, weight: { value, isStale, problem }, rank, seen, getText }: CellOptions): JSX.Element {
  const info = meta.layers[layer];
  if (isStale || value === null || !info)
    return (
      <>
        <h3>Weight</h3>
        <p class="soft">{problem ?? "reading…"}</p>
      </>
    );
  const isMasked = Number.isNaN(value);
  const explanation = info.zeros_masked ? "No weight: it is zero, or this cell is masked." : "Masked: this query cannot attend to this key.";
  return (
    <>
      <h3>
        <Sentence parts={describeLink(link, { value: isMasked ? null : value, position: null }, info, getText)} />
      </h3>
      <p class="weight-large">{isMasked ? "masked" : formatWeight(value)}</p>
      <p class="soft">{isMasked ? explanation : isSpan(link) ? describeSpan(link) : describeRank(rank, seen)}</p>
    </>
  );
}

/** The first heads of the ranking. */
function RankedHeads({
  shown,
  ranked,
  chooseHead,
}: {
  readonly shown: TraceHead;
  readonly ranked: readonly RankedHead[];
  chooseHead(layer: number, head: number): void;
}): JSX.Element {
  const listed = ranked.slice(0, MAX_RANKED);
  const most = listed[0]?.value || 1;
  return (
    <section class="heads-with-link" aria-label="Heads with this link">
      <h3>Heads with this link</h3>
      <ol class="strongest">
        {listed.map(({ layer, head, value }) => (
          <li key={`${layer}/${head}`}>
            <button type="button" aria-current={layer === shown.layer && head === shown.head ? "true" : undefined} onClick={() => chooseHead(layer, head)}>
              <span>{formatHeadName(shown.meta, layer, head)}</span>
              <span />
              <span class="weight">{formatWeightColumn(value)}</span>
              <span class="weight-bar" aria-hidden="true" style={{ width: `${Math.max(1, (100 * value) / most)}%` }} />
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}

const MAX_RANKED = 5;
const MAX_SPAN_TEXTS = 200;

function isSpan(link: Link | null): boolean {
  return [link?.query, link?.key].some((side) => side && side.last > side.first);
}

/** The texts of the pinned keys, unless they are the query itself. */
function listKeyTexts(key: Positions | null, place: number, getText: EvidenceActions["getText"]): string[] {
  if (!key || (key.first === place && key.last === place)) return [];
  const length = Math.min(key.last - key.first + 1, MAX_SPAN_TEXTS);
  return Array.from({ length }, (_, index) => getText("key", key.first + index) ?? "").filter((text) => text !== "");
}

/** The weight on the keys together, as the mean over the queries; NaN where all is masked. */
function sumWeights({ rows, values }: { readonly rows: number; readonly values: Float32Array }): number {
  const visible = values.filter((value) => !Number.isNaN(value));
  return visible.length === 0 ? NaN : visible.reduce((sum, value) => sum + value, 0) / rows;
}

function describeSpan({ query, key }: Link): string {
  const [queries, keys] = [query, key].map((side) => (side ? side.last - side.first + 1 : 1)) as [number, number];
  const sum = `exact; the sum over ${pluralize(keys, "key")}`;
  return queries > 1 ? `${sum}, as the mean of ${formatCount(queries)} queries` : sum;
}

function describeRank(ranked: Rank | null, seen: number | undefined): string {
  if (!ranked || seen === undefined) return "exact";
  if (!ranked.exact) return `exact; not among the ${ranked.rank - 1} strongest of ${formatCount(seen)} keys`;
  return `exact; ${formatOrdinal(ranked.rank)} of ${formatCount(seen)} visible keys`;
}

async function loadWeights(cache: ResponseCache, path: string, signal: AbortSignal): Promise<Weights> {
  const body = await cache.bytes(path, signal);
  if (!body) return { values: new Float32Array(0), largest: null, stride: 1 };
  const { rows, columns, values, z } = readFloats(body);
  return { values: values.subarray(0, columns), largest: rows > 1 ? values.subarray(columns, 2 * columns) : null, stride: 2 ** z };
}

function announceCell(
  weight: number,
  rank: Rank | null,
  known: QueryData | null,
  query: number,
  key: number,
  getText: EvidenceActions["getText"],
): string {
  return describeCell({
    ...{ query, key, exact: true },
    queryText: getText("query", query),
    keyText: getText("key", key),
    value: Number.isNaN(weight) ? null : weight,
    rank: rank?.exact ? rank.rank : undefined,
    seen: known?.report.visible_keys,
  });
}

function announceQuery(report: QueryReport, getText: EvidenceActions["getText"]): string {
  const [key, weight] = report.strongest[0] ?? [];
  const name = describeToken("query", report.position, getText("query", report.position));
  if (key === undefined || weight === undefined) return `${name}: all keys are masked`;
  return `${name} attends most to ${describeToken("key", key, getText("key", key))}, weight ${formatWeight(weight)}`;
}
