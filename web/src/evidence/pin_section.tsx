/** A pinned token: as a query (what it attends to) or as a key (what attends to it). */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { formatCount, formatMeasure, formatPercent, formatWeight, pluralize } from "../format_numbers";
import type { Host } from "../host";
import { formatToken } from "../paint/token_text";
import type { Positions } from "../questions/parse_question";
import type { KeyReport, QueryReport, Side } from "../server/protocol";
import { BarChart } from "./bar_chart";
import { Kwic, LEAST_LISTED, LinkRows } from "./link_rows";
import { findPassage, type GetText } from "./passage";
import type { Response } from "./use_response";

/** A row or a column of weights: every weight, or pooled in bins of `stride`. */
export interface Weights {
  readonly values: Float32Array;
  /** The largest weight of each bin; null when every weight is there. */
  readonly largest: Float32Array | null;
  readonly stride: number;
}

export interface Fact {
  readonly name: string;
  readonly value: string;
  readonly meaning: string;
}

export interface PinReport {
  readonly position: number;
  readonly facts: readonly Fact[];
  readonly weights: Weights;
  readonly strongest: readonly (readonly [number, number])[];
}

const LABELS = {
  query: { title: "Query", other: "key", others: "keys", listHeading: "Strongest keys", bars: "What this token attends to" },
  key: { title: "Key", other: "query", others: "queries", listHeading: "Strongest queries", bars: "Attention from each query" },
} as const;

const VISIBLE_ROWS = 8;
/** Characters of context on each side: in a row, and in the passage of the pinned token. */
const ROW_CONTEXT = 11;
const PASSAGE_CONTEXT = 60;

export interface PinSectionOptions {
  readonly side: Side;
  readonly positions: Positions;
  /** The pinned token of the other side, marked in the bars and in the list. */
  readonly other: number | null;
  readonly response: Response<PinReport>;
  readonly host: Host;
  /** Buttons of the heading. */
  readonly buttons?: ComponentChildren;
  /** Below the list of the strongest links. */
  readonly children?: ComponentChildren;
  getText(side: Side, position: number): string | undefined;
  pin(side: Side, position: number): void;
  unpin(side: Side): void;
}

export function PinSection(options: PinSectionOptions): JSX.Element {
  const { side, positions, response, getText, unpin, children } = options;
  const { first, last } = positions;
  const { value: report, isStale, problem } = response;
  const ownText: GetText = (at) => getText(side, at);
  const name = last > first ? `${formatCount(first)} to ${formatCount(last)}` : formatCount(first);
  return (
    <section class={`side side-${side}`} aria-label={`Pinned ${side}`}>
      <div class="side-head">
        <h3>
          {LABELS[side].title} {name} {last === first && <Token text={ownText(first)} position={first} />}
        </h3>
        {options.buttons}
        <button type="button" class="step" aria-label={`Unpin the ${side}`} title="Unpin (Esc)" onClick={() => unpin(side)}>
          ×
        </button>
      </div>
      <p class="passage">
        <Kwic passage={findPassage(ownText, first, last, PASSAGE_CONTEXT)} position={first} />
      </p>
      {(isStale || problem !== null) && <p class="soft">{problem ?? "reading…"}</p>}
      {report && (
        <div class={isStale ? "stale" : ""}>
          <Report {...options} report={report} />
          {children}
        </div>
      )}
    </section>
  );
}

/** The text of a token, isolated from the direction of the text around it. */
export function Token({ text, position }: { readonly text: string | undefined; readonly position: number }): JSX.Element {
  return text === undefined ? <bdi class="token token-unknown">#{position}</bdi> : <bdi class="token">{formatToken(text)}</bdi>;
}

function Report({ report, side, positions, other, host, getText, pin }: PinSectionOptions & { readonly report: PinReport }): JSX.Element {
  const [hovered, setHovered] = useState<number | null>(null);
  const { values, largest, stride } = report.weights;
  const { bars, others, listHeading } = LABELS[side];
  const otherSide = side === "query" ? "key" : "query";
  const otherText: GetText = (at) => getText(otherSide, at);
  const listed = report.strongest.filter(([, weight]) => weight >= LEAST_LISTED);
  const pinBar = (bar: number): void => {
    // A pooled bar does not know which of its tokens is the strong one, unless the list does.
    const inside = report.strongest.find(([position]) => Math.floor(position / stride) === bar);
    pin(otherSide, inside?.[0] ?? bar * stride);
  };
  return (
    <>
      {positions.last > positions.first && <p class="soft">The first of these tokens:</p>}
      <dl class="facts">
        {report.facts.map(({ name, value, meaning }) => (
          <div key={name} title={meaning}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <h4>{bars}</h4>
      <BarChart
        height={56}
        host={host}
        onHover={setHovered}
        onPick={pinBar}
        data={{
          values: largest ?? values,
          colour: side,
          marked: other === null ? null : Math.floor(other / stride),
          label: `${bars}: ${pluralize(values.length, "bar")}, ${
            largest ? `each the largest of ${stride} ${others}` : "exact weights"
          }, see the list below for the strongest`,
        }}
      />
      <p class="caption soft">{describeBar(report.weights, hovered, side, otherText)}</p>
      <h4>{listHeading}</h4>
      {listed.length > 0 ? (
        <LinkRows
          key={report.position}
          rows={listed.map(([position, weight]) => ({ position, weight }))}
          visible={VISIBLE_ROWS}
          marked={other}
          getPassage={(position) => findPassage(otherText, position, position, ROW_CONTEXT)}
          onChoose={(position) => pin(otherSide, position)}
        />
      ) : (
        <p class="soft">None: the mask allows nothing here.</p>
      )}
    </>
  );
}

/** The bar under the pointer; without one, what the bars are. */
function describeBar({ values, largest, stride }: Weights, bar: number | null, side: Side, otherText: GetText): ComponentChildren {
  const { other, others } = LABELS[side];
  if (bar === null)
    return largest
      ? `Pooled: a bar is the largest of ${stride} ${others}.`
      : `Exact: one bar for each of ${pluralize(values.length, other, others)}.`;
  const from = bar * stride;
  const value = values[bar] ?? NaN;
  if (!largest)
    return (
      <>
        {formatCount(from)} <Token text={otherText(from)} position={from} /> {Number.isNaN(value) ? "masked" : formatWeight(value)}
      </>
    );
  const spread = `from ${formatCount(from)} on: `;
  return Number.isNaN(value) ? `${spread}masked` : `${spread}mean ${formatWeight(value)}, largest ${formatWeight(largest[bar] ?? NaN)}`;
}

export function listQueryFacts(report: QueryReport, cross: boolean): readonly Fact[] {
  const facts = [
    { name: "entropy", value: `${formatMeasure(report.entropy)} nats`, meaning: "How spread out its attention is; 0 is all on one key" },
    {
      name: "effective keys",
      value: formatMeasure(report.effective_keys),
      meaning: "1 over the sum of squared weights: this many keys with equal weights would be as concentrated",
    },
    { name: "mean distance", value: formatMeasure(report.mean_distance), meaning: "Tokens back, weighted by attention" },
    {
      name: "first token",
      value: formatPercent(report.first_token),
      meaning: "Share on the first token, where idle heads park their attention",
    },
    { name: "visible keys", value: formatCount(report.visible_keys), meaning: "Keys that the mask allows for this query" },
  ];
  // Between two texts there is no distance.
  return facts.filter(({ name }) => !cross || name !== "mean distance");
}

export function listKeyFacts(report: KeyReport): readonly Fact[] {
  return [
    {
      name: "received",
      value: formatMeasure(report.received),
      meaning: "The sum of all weights on this key; 1 is one query's whole attention",
    },
    { name: "visible to", value: formatCount(report.visible_queries), meaning: "Queries for which the mask allows this key" },
  ];
}
