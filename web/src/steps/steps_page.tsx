/**
 * One attention weight, step by step: three stages with the same view, and a fourth with a pair of an open trace.
 *
 * In: the address. Out: a page that needs neither a server nor a model; the fourth stage loads from the explorer.
 */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { JSX } from "preact";
import { useHashChange } from "../hash_change";
import { formatToken } from "../paint/token_text";
import type { Transport } from "../server/transport";
import { readAddress, writeAddress } from "./address";
import { attendRow, computePattern, getScale } from "./attention";
import { CARDS, getShownHead, type EditablePair } from "./cards";
import { Controls } from "./controls";
import { EXAMPLE_DATA } from "./example_data";
import { Matrices } from "./matrices";
import { NumberTable } from "./number_table";
import { PatternGrid } from "./pattern_grid";
import { makePrediction, STEPS, type StepName } from "./predictions";
import { computeVectors, DEFAULTS, getEditKey, type Edits, type EditedRows, type Settings, type StageName } from "./stages";
import { ShowSteps, StepList, Token, type Judgement, type Judgements } from "./step_list";
import { readTraceAddress } from "./trace_address";
import { TraceStage } from "./trace_stage";

const STAGES: Record<StageName, { readonly title: string; readonly about: string; readonly lab: string }> = {
  hand: {
    title: "1. Three tokens by hand",
    about: "Three tokens x1 = (1, 0), x2 = (0, 1), x3 = (1, 1), worked by hand in the texts. Queries and keys are the tokens themselves; values are (10, 0), (0, 10), (5, 5). Every number is visible.",
    lab: "worked_examples",
  },
  sentence: {
    title: "2. A sentence, no trained model",
    about: "Embeddings are random numbers drawn from a hash of each word's characters, and the projections are fixed random matrices. No trained model is involved: the pattern shows the mechanics, not language. Values have 4 numbers per head.",
    lab: "untrained_heads",
  },
  model: {
    title: "3. A head of a trained model",
    about: `Real queries, keys and values of ${EXAMPLE_DATA.model}, recorded on one sentence. The attention of this model is causal and rotary; other settings show what this head would compute from the same rows. Layers below do not run again.`,
    lab: "trained_heads",
  },
};

interface PageState {
  readonly settings: Readonly<Record<StageName, Settings>>;
  readonly stage: StageName;
  readonly pairs: Readonly<Record<StageName, readonly [number, number]>>;
  readonly edits: Edits;
  readonly shown: Readonly<Record<StageName, number>>;
  readonly judgements: Readonly<Record<StageName, Judgements>>;
}

const NOTHING_SHOWN = { hand: 0, sentence: 0, model: 0 };
const NO_JUDGEMENTS = { hand: {}, sentence: {}, model: {} };
/** Settings that change queries, keys or values, and so undo edits. */
const OF_VECTORS = ["mask", "positions", "numHeads", "headDim", "head", "shuffleSeed", "sentence", "memory"] as const;

function createState(fragment: string): PageState {
  const { settings, query, key } = readAddress(fragment);
  const pairs = { hand: [0, 2], sentence: [4, 1], model: [31, 30] } as const;
  return {
    settings: { ...DEFAULTS, [settings.stage]: settings },
    stage: settings.stage,
    pairs: { ...pairs, ...(query !== null && key !== null ? { [settings.stage]: [query, key] as const } : {}) },
    edits: {},
    shown: NOTHING_SHOWN,
    judgements: NO_JUDGEMENTS,
  };
}

export interface StepsPageOptions {
  /** Where the pages of labs are, or "" where only the command can be named. */
  readonly labs: string;
  /** Null where the page is a file of its own. */
  readonly transport: Transport | null;
}

export function StepsPage({ labs, transport }: StepsPageOptions): JSX.Element {
  const [pinned, setPinned] = useState(() => transport && readTraceAddress(location.hash));
  const [isPinnedShown, setPinnedShown] = useState(pinned !== null);
  const [state, setState] = useState(() => createState(location.hash));
  const { stage, edits } = state;
  const settings = state.settings[stage];
  const { headDim, divide, temperature, mask } = settings;
  const scale = getScale(headDim, divide, temperature);
  const vectors = useMemo(() => computeVectors(settings, edits), [settings, edits]);
  const query = Math.min(state.pairs[stage][0], vectors.queryTokens.length - 1);
  const key = Math.min(state.pairs[stage][1], vectors.keyTokens.length - 1);
  const head = getShownHead(vectors, settings);
  const row = useMemo(() => attendRow(head, query, scale, mask), [head, query, scale, mask]);
  const weights = useMemo(() => computePattern(head, scale, mask), [head, scale, mask]);
  const numShown = state.shown[stage];
  const steps = stage === "model" ? STEPS : STEPS.slice(0, -1); // only a trained model predicts a token

  useEffect(() => {
    if (!isPinnedShown) history.replaceState(null, "", writeAddress(settings, query, key));
  }, [settings, query, key, isPinnedShown]);
  useHashChange((hash) => {
    const found = transport && readTraceAddress(hash);
    setPinned((before) => found ?? before);
    setPinnedShown(found !== null);
    if (!found) setState(createState(hash));
  });

  const change = (changes: Partial<Settings>): void =>
    setState((before) => ({
      ...before,
      settings: { ...before.settings, [stage]: { ...before.settings[stage], ...changes } },
      edits: OF_VECTORS.some((name) => name in changes) ? {} : before.edits,
    }));
  const setShown = (count: number): void =>
    setState((before) => ({
      ...before,
      shown: { ...before.shown, [stage]: count },
      judgements: count === 0 ? { ...before.judgements, [stage]: {} } : before.judgements,
    }));
  const show = (step: StepName, judgement: Judgement | null): void =>
    setState((before) => ({
      ...before,
      shown: { ...before.shown, [stage]: STEPS.indexOf(step) + 1 },
      judgements: judgement ? { ...before.judgements, [stage]: { ...before.judgements[stage], [step]: judgement } } : before.judgements,
    }));
  const choose = (toQuery: number, toKey: number): void =>
    setState((before) => ({
      ...before,
      pairs: { ...before.pairs, [stage]: [toQuery, toKey] },
      judgements: { ...before.judgements, [stage]: {} }, // they were about another pair
    }));
  const edit = (rows: EditedRows, at: number, column: number, value: number): void =>
    setState((before) => ({ ...before, edits: { ...before.edits, [getEditKey(rows, at, column)]: value } }));

  const pair: EditablePair = {
    ...{ settings, vectors, query, key, row, scale, edit },
    keyHeads: vectors.keyTokens.map((token) => formatToken(token, 10)),
    nameKey: (at) => `key ${at + 1}: ${formatToken(vectors.keyTokens[at] ?? "")}`,
  };
  return (
    <div class="steps">
      <header class="steps-top">
        <h1>One attention weight, step by step</h1>
        <nav class="segments" aria-label="Stages">
          {(Object.keys(STAGES) as StageName[]).map((name) => (
            <button
              key={name}
              type="button"
              aria-pressed={!isPinnedShown && name === stage}
              onClick={() => {
                setPinnedShown(false);
                setState((before) => ({ ...before, stage: name, edits: {} }));
              }}
            >
              {STAGES[name].title}
            </button>
          ))}
          {pinned && (
            <button type="button" aria-pressed={isPinnedShown} onClick={() => setPinnedShown(true)}>
              4. Your model
            </button>
          )}
        </nav>
      </header>
      <main class="steps-main">
        {transport && pinned && isPinnedShown ? (
          <TraceStage address={pinned} transport={transport} labs={labs} choose={(to) => setPinned({ ...pinned, key: to })} />
        ) : (
          <>
            <div class="steps-side">
              <p>{STAGES[stage].about}</p>
              <Formula isCross={mask === "cross"} />
              <Controls settings={settings} numEdits={Object.keys(edits).length} change={change} undoEdits={() => setState((before) => ({ ...before, edits: {} }))} />
              <h2>Attention pattern</h2>
              <p class="soft">Rows are queries, columns are keys. Click a cell or a row label, or use the arrow keys.</p>
              <PatternGrid
                queryTokens={vectors.queryTokens}
                keyTokens={vectors.keyTokens}
                weights={weights}
                mask={mask}
                query={query}
                chosenKey={key}
                isRowHidden={numShown <= STEPS.indexOf("weight")}
                choose={choose}
              />
              {stage === "hand" && <Matrices head={head} settings={settings} query={query} chosenKey={key} numShown={numShown} />}
            </div>
            <section class="steps-work" aria-label="Steps">
              <ShowSteps numShown={numShown} numSteps={steps.length} setShown={setShown} />
              <StepList
                pair={pair}
                pairName={`${query}/${key}`}
                steps={steps}
                cards={CARDS}
                numShown={numShown}
                judgements={state.judgements[stage]}
                labs={labs}
                predict={(step) => makePrediction(step, pair)}
                show={show}
              >
                <QueryAndKey pair={pair} numShown={numShown} />
              </StepList>
            </section>
          </>
        )}
      </main>
    </div>
  );
}

function QueryAndKey({ pair, numShown }: { readonly pair: EditablePair; readonly numShown: number }): JSX.Element {
  const { vectors, settings, query, key, row, edit } = pair;
  const head = getShownHead(vectors, settings);
  return (
    <>
      <h2>Query and key</h2>
      <p>
        The query of <Token text={vectors.queryTokens[query]} /> is compared with the key of <Token text={vectors.keyTokens[key]} />. Click a number to edit it.
      </p>
      <NumberTable
        name="Query and key"
        rows={[
          { label: "q", numbers: head.queries[query] ?? [], kind: "query", edit: (column, value) => edit("queries", query, column, value) },
          { label: "k", numbers: head.keys[key] ?? [], kind: "key", edit: (column, value) => edit("keys", key, column, value) },
          ...(numShown > 0 ? [{ label: "q × k", numbers: row.products[key] ?? [] }] : []),
        ]}
      />
    </>
  );
}

function Formula({ isCross }: { readonly isCross: boolean }): JSX.Element {
  return (
    <p class="formula">
      Attention(Q, K, V) = softmax(Q K<sup>T</sup> / √d<sub>k</sub>) V{isCross && <span class="soft"> with K and V from another sequence</span>}
    </p>
  );
}
