/** Under the navigator: the legend of its colours, the ranking of heads, and what is in the text. Above it: the question. */

import { render, type JSX } from "preact";
import { formatCount, formatPercent } from "../format_numbers";
import { getLabelShape } from "../heads/label_badge";
import { countLabels } from "../heads/scored_heads";
import { formatTitle } from "../paint/token_text";
import { formatValue, getValueRange, isSigned, nameValue } from "../questions/head_cells";
import { getPinnedLink } from "../questions/head_question";
import type { HeadRanking, RankedHead } from "../questions/head_ranking";
import { describeLink, namePositions, type GetText, type SentencePart } from "../questions/sentences";
import { formatHeadName, type Finding, type Meta, type Opening } from "../server/protocol";
import { isShown } from "../questions/opening";
import type { QuestionChoice, State } from "../state";

export interface RankingOptions {
  readonly state: State;
  readonly meta: Meta;
  readonly ranking: HeadRanking;
  readonly opening: Opening | null;
  /** Whether the model can run again with heads ablated. */
  readonly canAblate: boolean;
  getText: GetText;
  choose(layer: number, head: number): void;
  show(finding: Finding): void;
  set(change: Partial<State>): void;
}

const LISTED = 20;
const CHOICES: readonly (readonly [QuestionChoice, string])[] = [
  ["auto", "automatic"],
  ["label", "labels"],
  ["link", "the pinned link"],
  ["ablation", "effect when ablated"],
  ["difference", "difference to B"],
];

export function Sentence({ parts }: { readonly parts: readonly SentencePart[] }): JSX.Element {
  return (
    <>
      {parts.map(({ text, side }, index) =>
        side ? (
          <bdi key={index} class={`said said-${side}`}>
            {text}
          </bdi>
        ) : (
          text
        ),
      )}
    </>
  );
}

/** `above` and `below` are the places around the grid. */
export function renderRanking(above: HTMLElement, below: HTMLElement, options: RankingOptions): void {
  render(<QuestionSelect {...options} />, above);
  render(<RankingPanel {...options} />, below);
}

/** What the heads are coloured and ranked by. */
function QuestionSelect({ state, ranking, meta, canAblate, getText, set }: RankingOptions): JSX.Element {
  const link = getPinnedLink(state);
  const layer = meta.layers[state.layer];
  const isPossible: Readonly<Record<QuestionChoice, boolean>> = {
    ...{ auto: true, label: true, link: link !== null },
    ...{ ablation: canAblate, difference: link !== null && state.compare !== null },
  };
  return (
    <>
      <label class="field question">
        <span>Heads by</span>
        <select value={state.question} onChange={({ currentTarget }) => set({ question: currentTarget.value as QuestionChoice })}>
          {CHOICES.map(([value, name]) => (
            <option key={value} value={value} disabled={!isPossible[value]}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <p class="asked">
        {"link" in ranking.question && link && layer ? (
          <>
            {nameValue(ranking.question)}, <Sentence parts={describeLink(link, null, { ...layer, causal: false }, getText)} />
          </>
        ) : ranking.question.kind === "label" ? (
          "labels"
        ) : (
          nameValue(ranking.question)
        )}
      </p>
    </>
  );
}

function RankingPanel(options: RankingOptions): JSX.Element {
  const { state, ranking, meta, choose } = options;
  const { list, pending, problem, question } = ranking;
  const [, high] = getValueRange(ranking);
  return (
    <>
      {question.kind === "label" ? <LabelLegend {...options} /> : <ValueLegend ranking={ranking} />}
      <section class="ranking" aria-label="Ranked heads">
        <h3>
          Ranked
          <span class="soft"> {question.kind === "label" ? "by strength of label" : ""}</span>
        </h3>
        <Filters {...options} />
        {problem !== "" && <p class="soft">{formatTitle(problem, 300)}</p>}
        {pending && list.length === 0 && <p class="soft">Reading all heads…</p>}
        {!pending && problem === "" && list.length === 0 && <p class="soft">No head.</p>}
        <ol>
          {list.slice(0, LISTED).map((one, index) => (
            <li key={`${one.layer},${one.head}`}>
              <button
                type="button"
                class="rank-row"
                aria-current={one.layer === state.layer && one.head === state.head ? "true" : undefined}
                title={describeRow(one, options)}
                onClick={() => choose(one.layer, one.head)}
              >
                <span class="rank soft">{index + 1}</span>
                <span class="rank-name">{formatHeadName(meta, one.layer, one.head)}</span>
                <span class="rank-bar" aria-hidden="true">
                  <span data-colour={one.value < 0 ? "negative" : "positive"} style={{ width: `${high > 0 ? (100 * Math.abs(one.value)) / high : 0}%` }} />
                </span>
                <RankText {...options} one={one} />
                <span class="number">{formatValue(question, one.value)}</span>
              </button>
            </li>
          ))}
        </ol>
      </section>
      <Cards {...options} />
    </>
  );
}

/** The label of a head; of a link, which may be an exception to it, the token that the head attends to. */
function RankText({ ranking, getText, one }: RankingOptions & { readonly one: RankedHead }): JSX.Element | null {
  const { question } = ranking;
  if (!("link" in question)) return <span class="rank-text soft">{ranking.getLabel(one.layer, one.head)}</span>;
  if (one.position === null) return null;
  return (
    <span class="rank-text">
      <Sentence parts={namePositions(question.link.query ? "key" : "query", { first: one.position, last: one.position }, getText)} />
    </span>
  );
}

function describeRow({ layer, head, value }: RankedHead, { ranking: { question }, meta }: RankingOptions): string {
  return `${formatHeadName(meta, layer, head)}: ${nameValue(question)} ${formatValue(question, value)}`;
}

/** What leaves heads out; a click removes it. */
function Filters({ state, set }: RankingOptions): JSX.Element | null {
  const filters = [
    ["label", state.label] as const,
    ["filter", state.filter] as const,
  ].filter(([, value]) => value !== "");
  if (filters.length === 0) return null;
  return (
    <p class="filters">
      {filters.map(([name, value]) => (
        <button key={name} type="button" aria-label={`Remove the filter ${formatTitle(value)}`} onClick={() => set({ [name]: "" })}>
          only {formatTitle(value)} ✕
        </button>
      ))}
    </p>
  );
}

function LabelLegend({ ranking, state, set }: RankingOptions): JSX.Element {
  return (
    <div class="cell-legend" role="group" aria-label="Labels">
      {countLabels(ranking.scored).map(([label, count]) => (
        <button
          key={label}
          type="button"
          class="legend-label"
          aria-pressed={state.label === label}
          title={`Only heads with the label ${label}`}
          onClick={() => set({ label: state.label === label ? "" : label })}
        >
          <span class="legend-swatch" data-colour={label} aria-hidden="true">
            {getLabelShape(label)}
          </span>
          {label} <span class="soft">{formatCount(count)}</span>
        </button>
      ))}
    </div>
  );
}

function ValueLegend({ ranking }: { readonly ranking: HeadRanking }): JSX.Element | null {
  const { question } = ranking;
  const [low, high] = getValueRange(ranking);
  if (high === 0) return null;
  return (
    <p class="cell-legend value-legend">
      <span>{formatValue(question, low)}</span>
      <span class={isSigned(question) ? "ramp signed" : "ramp"} />
      <span>{formatValue(question, high)}</span>
    </p>
  );
}

/** The best head of each label that is in the text. */
function Cards({ opening, meta, state, getText, show }: RankingOptions): JSX.Element | null {
  if (!opening || opening.cards.length === 0) return null;
  const { pending, scored_queries: scored, cards } = opening;
  return (
    <section class="cards" aria-label="What is in this text">
      <h3>
        What is in this text
        {pending && <span class="soft"> {scored === 0 ? "so far" : `from the first ${formatCount(scored)} tokens`}</span>}
      </h3>
      <ul>
        {cards.map((card) => (
          <li key={card.label}>
            <button
              type="button"
              class="card"
              aria-current={isShown(card, state) ? "true" : undefined}
              title={`${formatHeadName(meta, card.layer, card.head)}, weight ${formatPercent(card.weight)}. ${formatTitle(card.meaning, 400)}`}
              onClick={() => show(card)}
            >
              <span class="legend-swatch" data-colour={card.label} aria-hidden="true">
                {getLabelShape(card.label)}
              </span>
              <span class="card-label">{formatTitle(card.label)}</span>
              <span class="card-link">
                <Sentence parts={namePositions("query", { first: card.query, last: card.query }, getText)} />
                {" → "}
                <Sentence parts={namePositions("key", { first: card.key, last: card.key }, getText)} />
              </span>
              <span class="soft">{formatHeadName(meta, card.layer, card.head)}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
