/** The fourth stage: a pair of an open trace, with the vectors that were recorded. */

import { useEffect, useState } from "preact/hooks";
import type { JSX } from "preact";
import { useResponse } from "../evidence/use_response";
import { formatCount, pluralize } from "../format_numbers";
import { formatHeadName, paths, type Meta, type ProjectionReport, type RowReport } from "../server/protocol";
import type { Transport } from "../server/transport";
import { DEFAULT_STATE, writeAddress } from "../state";
import { formatNumber } from "./format";
import type { StepName } from "./predictions";
import { ShowSteps, StepList, Token, type Judgement, type Judgements } from "./step_list";
import { writeTraceAddress, type TraceAddress } from "./trace_address";
import { predictTrace, TRACE_CARDS, TRACE_STEPS } from "./trace_cards";
import { makeTracePair, type TracePair } from "./trace_row";
import { VectorStrips } from "./vector_strips";

export interface TraceStageOptions {
  readonly address: TraceAddress;
  readonly transport: Transport;
  readonly labs: string;
  choose(key: number): void;
}

export function TraceStage({ address, transport, labs, choose }: TraceStageOptions): JSX.Element {
  const { trace, layer, head, query, key } = address;
  const [numShown, setNumShown] = useState(0);
  const [judgements, setJudgements] = useState<Judgements>({});
  const load = <Value,>(path: string) => useResponse(path, (signal) => transport.json<Value>(path, signal));
  const meta = load<Meta>(paths.meta(trace));
  const report = load<RowReport>(paths.steps(trace, layer, head, query, key));
  const projection = load<ProjectionReport>(paths.projection(trace, layer, head, query));

  useEffect(() => history.replaceState(null, "", writeTraceAddress(address)), [address]);
  useEffect(() => setJudgements({}), [query, key]); // they were about another pair

  const problem = report.problem ?? meta.problem;
  if (problem !== null || report.value === null || meta.value === null) return <p role="status">{problem ?? "reading…"}</p>;
  const pair = makeTracePair(report.value, key);
  const setShown = (count: number): void => {
    setNumShown(count);
    if (count === 0) setJudgements({});
  };
  const show = (step: StepName, judgement: Judgement | null): void => {
    setNumShown((TRACE_STEPS as readonly StepName[]).indexOf(step) + 1);
    if (judgement) setJudgements((before) => ({ ...before, [step]: judgement }));
  };
  const shownKey = report.value.keys[pair.key];
  return (
    <>
      <div class="steps-side">
        <p>
          Head {formatHeadName(meta.value, layer, head)} in <i>{meta.value.name}</i>: the query and keys that its attention call received, after rotary position embeddings if the model has
          them. This page computes the weight from these vectors. <a href={`/${writeAddress({ ...DEFAULT_STATE, trace, layer, head, pinQuery: query, pinKey: key })}`}>Back to the map</a>
        </p>
        <h2>
          Query {formatCount(query)} <Token text={report.value.text ?? `#${query}`} /> and its strongest keys
        </h2>
        <KeyList pair={pair} isHidden={numShown <= TRACE_STEPS.indexOf("weight")} choose={choose} />
      </div>
      <section class="steps-work" aria-label="Steps">
        <ShowSteps numShown={numShown} numSteps={TRACE_STEPS.length} setShown={setShown} />
        <StepList
          pair={{ ...pair, projection: projection.value ?? (projection.problem === null ? null : { problem: projection.problem, output: null }) }}
          pairName={`${query}/${key}`}
          steps={TRACE_STEPS}
          cards={TRACE_CARDS}
          numShown={numShown}
          judgements={judgements}
          labs={labs}
          predict={(step) => predictTrace(step, pair)}
          show={show}
        >
          <h2>Query and key</h2>
          <p>
            The query of <Token text={report.value.text ?? `#${query}`} /> ({formatCount(query)}) is compared with the key of <Token text={shownKey?.text ?? `#${shownKey?.position ?? 0}`} /> (
            {formatCount(shownKey?.position ?? 0)}). Both have {report.value.vector.length} numbers.
          </p>
          <VectorStrips
            name="Query and key"
            rows={[
              { label: "q", numbers: report.value.vector, kind: "query" },
              { label: "k", numbers: shownKey?.vector ?? [], kind: "key" },
              ...(numShown > 0 ? [{ label: "q × k", numbers: pair.row.products[pair.key] ?? [] }] : []),
            ]}
          />
        </StepList>
      </section>
    </>
  );
}

interface KeyListOptions {
  readonly pair: TracePair;
  /** The weights are still to be predicted. */
  readonly isHidden: boolean;
  choose(key: number): void;
}

function KeyList({ pair: { report, row, key: chosen, keyHeads }, isHidden, choose }: KeyListOptions): JSX.Element {
  return (
    <ol class="next-tokens trace-keys">
      {keyHeads.map((name, at) => {
        const key = report.keys[at];
        const weight = row.weights[at] ?? 0;
        return (
          <li key={at}>
            {key ? (
              <button type="button" aria-pressed={at === chosen} onClick={() => choose(key.position)}>
                <bdi class="token">{name}</bdi>
              </button>
            ) : (
              <span class="soft">{name === "others" ? `all ${pluralize(report.others.count, "other key")}` : "attention sink"}</span>
            )}
            <span class="next-bar">{!isHidden && <span style={{ width: `${(100 * weight).toFixed(2)}%` }} />}</span>
            <span class="next-share">{key?.masked ? "masked" : isHidden ? "?" : formatNumber(weight)}</span>
          </li>
        );
      })}
    </ol>
  );
}
