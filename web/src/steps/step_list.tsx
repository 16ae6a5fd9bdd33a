/** The steps from a query and a key to the output, one card each; a card asks for a prediction before it opens. */

import type { ComponentChildren, JSX } from "preact";
import { pluralize } from "../format_numbers";
import { formatToken } from "../paint/token_text";
import { concatenateHeads, getEntropy, getScale, isAllowed, project, type Vector } from "./attention";
import { EXAMPLE_DATA } from "./example_data";
import { formatNumber as format } from "./format";
import { NextTokenBars } from "./next_token_bars";
import { NumberTable } from "./number_table";
import { PredictionForm } from "./prediction_form";
import { judgePrediction, makePrediction, STEPS, type Pair, type StepName } from "./predictions";
import type { EditedRows, StageName } from "./stages";

/** What was predicted at a step, in a sentence. */
export interface Judgement {
  readonly isRight: boolean;
  readonly text: string;
}

export interface StepListOptions {
  readonly pair: Pair;
  /** The number of steps that are shown. */
  readonly numShown: number;
  readonly judgements: Readonly<Partial<Record<StepName, Judgement>>>;
  show(step: StepName, judgement: Judgement | null): void;
  edit(rows: EditedRows, row: number, column: number, value: number): void;
  /** Where the pages of labs are, or "" where only the command can be named. */
  readonly labs: string;
}

interface Step {
  readonly title: string;
  readonly claim: string;
  readonly lab: string;
  readonly body: (options: StepListOptions) => ComponentChildren;
}

export function getSteps(stage: StageName): readonly StepName[] {
  return stage === "model" ? STEPS : STEPS.slice(0, -1);
}

export function StepList(options: StepListOptions): JSX.Element {
  const { pair, numShown, judgements, show, labs } = options;
  const { key, query, vectors } = pair;
  const head = getShownHead(pair);
  const edit = (rows: EditedRows, row: number) => (column: number, value: number): void => options.edit(rows, row, column, value);
  return (
    <ol class="steps-list">
      <li class="step">
        <h2>Query and key</h2>
        <p>
          The query of <Token text={vectors.queryTokens[query]} /> is compared with the key of <Token text={vectors.keyTokens[key]} />. Click a number to edit it.
        </p>
        <NumberTable
          name="Query and key"
          rows={[
            { label: "q", numbers: head.queries[query] ?? [], kind: "query", edit: edit("queries", query) },
            { label: "k", numbers: head.keys[key] ?? [], kind: "key", edit: edit("keys", key) },
            ...(numShown > 0 ? [{ label: "q × k", numbers: pair.row.products[key] ?? [] }] : []),
          ]}
        />
      </li>
      {getSteps(pair.settings.stage).map((name, index) => {
        const { title, claim, lab, body } = CARDS[name];
        const judgement = judgements[name];
        if (index > numShown) return null;
        return (
          <li key={name} class="step" data-step={name}>
            <h2>{title}</h2>
            {index === numShown ? (
              <PredictionForm
                key={`${query}/${key}`}
                prediction={makePrediction(name, pair)}
                answer={(guess) => show(name, judgePrediction(makePrediction(name, pair), guess))}
                skip={() => show(name, null)}
              />
            ) : (
              <>
                {judgement && (
                  <p class={judgement.isRight ? "right" : "wrong"} role="status">
                    {judgement.isRight ? "✓ " : "✗ "}
                    {judgement.text}
                  </p>
                )}
                {body(options)}
                <p class="soft claim">
                  Claim: {claim} Judged in the lab {labs === "" ? <code>attnscope lab run {lab}</code> : <a href={`${labs}${lab}.html`}>{lab}</a>}.
                </p>
              </>
            )}
          </li>
        );
      })}
    </ol>
  );
}

const CARDS: Record<StepName, Step> = {
  products: {
    title: "Products and their sum: the dot product",
    claim: "with q and k of mean 0 and variance 1, the dot product has variance dₖ.",
    lab: "scaling",
    body: ({ pair: { row, key } }) => (
      <Result>
        q · k = {writeSum(row.products[key] ?? [])} = <b data-result="dot">{format(row.dots[key] ?? NaN)}</b>
      </Result>
    ),
  },
  scale: {
    title: "Divide by √dₖ",
    claim: "without the division, large dₖ makes the softmax saturate.",
    lab: "scaling",
    body: ({ pair }) => {
      const { settings, row, key } = pair;
      const root = Math.sqrt(settings.headDim);
      const factor = getScale(settings.headDim, settings.divide, settings.temperature);
      const parts = [...(settings.divide ? [`√${settings.headDim} = ${format(root)}`] : []), ...(settings.temperature !== 1 ? [`temperature ${format(settings.temperature)}`] : [])];
      return (
        <>
          <KeyTable pair={pair} rows={[["q · k", row.dots], ["score", row.scores]]} />
          <Result>
            {parts.length === 0 ? "Not divided: the score is the dot product, " : `Divided by ${parts.join(" and by ")}: ${format(row.dots[key] ?? NaN)} × ${format(factor)} = `}
            <b data-result="score">{format(row.scores[key] ?? NaN)}</b>
          </Result>
        </>
      );
    },
  },
  mask: {
    title: "Mask",
    claim: "scores of −∞ give weights of exactly 0, and no gradient.",
    lab: "masks",
    body: ({ pair }) => {
      const { settings, row, key } = pair;
      const hidden = row.allowed.filter((isKept) => !isKept).length;
      return (
        <>
          <KeyTable pair={pair} rows={[["score", row.masked]]} />
          <Result>
            {settings.mask === "cross"
              ? "Cross-attention: keys and values come from another sequence, and all of them are allowed. "
              : settings.mask === "bidirectional"
                ? "Bidirectional: every key is allowed. "
                : `Causal: ${hidden === 0 ? "this is the last token, so no key comes after it" : `${pluralize(hidden, "later key")} ${hidden === 1 ? "gets" : "get"} the score −∞`}. `}
            The score of this pair is <b data-result="masked">{format(row.masked[key] ?? NaN)}</b>
          </Result>
        </>
      );
    },
  },
  exponential: {
    title: "Exponential",
    claim: "a lower temperature makes the distribution sharper, a higher one more uniform.",
    lab: "scaling",
    body: ({ pair }) => {
      const { row, key } = pair;
      return (
        <>
          <KeyTable pair={pair} rows={[["score", row.masked], ["exp", row.exponentials]]} />
          <Result>
            exp({format(row.masked[key] ?? NaN)}
            {row.shift !== 0 && ` − ${format(row.shift)}`}) = <b data-result="exponential">{format(row.exponentials[key] ?? NaN)}</b>; the sum of the row is {format(row.sum)}
            {row.shift !== 0 && ". The largest score is subtracted from all, so that no exponential overflows; the weights stay the same"}
          </Result>
        </>
      );
    },
  },
  weight: {
    title: "Divide by the sum: the attention weight",
    claim: "in self-attention a token always attends most to itself.",
    lab: "worked_examples",
    body: ({ pair }) => {
      const { row, key } = pair;
      return (
        <>
          <KeyTable pair={pair} rows={[["exp", row.exponentials], ["weight", row.weights]]} />
          <Result>
            {format(row.exponentials[key] ?? NaN)} / {format(row.sum)} = <b data-result="weight">{format(row.weights[key] ?? NaN)}</b>. All weights of the row sum to 1; their entropy is{" "}
            {format(getEntropy(row.weights))} of at most {format(Math.log2(row.allowed.filter(Boolean).length))} bits
          </Result>
        </>
      );
    },
  },
  values: {
    title: "Weights times values, and their sum: the output of the head",
    claim: "every output row is a weighted average of the values.",
    lab: "worked_examples",
    body: ({ pair, edit }) => {
      const { row, key, vectors } = pair;
      const head = getShownHead(pair);
      const dim = head.values[0]?.length ?? 0;
      const isSmall = head.values.length * dim <= 48;
      const shown = isSmall ? head.values.map((_, at) => at) : [key];
      return (
        <>
          {shown.map((at) => (
            <NumberTable
              key={at}
              name={`Value of key ${at + 1}`}
              rows={[
                { label: `v of ${formatToken(vectors.keyTokens[at] ?? "", 10)}`, numbers: head.values[at] ?? [], edit: (column, value) => edit("values", at, column, value) },
                { label: `× ${format(row.weights[at] ?? NaN)}`, numbers: row.weighted[at] ?? [] },
              ]}
            />
          ))}
          {!isSmall && <p class="soft">and {pluralize(head.values.length - 1, "other key")} in the same way.</p>}
          <NumberTable name="Output of the head" rows={[{ label: "sum", numbers: row.output, kind: "result" }]} />
        </>
      );
    },
  },
  output: {
    title: "Through W_O",
    claim: "W_O mixes the heads; multiplying the concatenated heads by it is the same as adding up one product per head.",
    lab: "multi_head_attention",
    body: ({ pair, edit }) => {
      const { settings, vectors, query } = pair;
      const scale = getScale(settings.headDim, settings.divide, settings.temperature);
      const concatenated = concatenateHeads(vectors.heads, query, scale, settings.mask);
      const result = project(vectors.output, concatenated);
      const size = `${settings.stage === "model" ? EXAMPLE_DATA.hiddenSize : vectors.output.length} × ${concatenated.length}`;
      return (
        <>
          <p>
            {settings.stage === "hand"
              ? `W_O is ${size}. The texts have none, so it starts as the identity: edit it to mix the heads.`
              : settings.stage === "sentence"
                ? `The outputs of ${pluralize(vectors.heads.length, "head")}, one after the other, times W_O (${size}, random).`
                : `What this head adds to the residual stream: its output times its ${concatenated.length} columns of W_O. The page has the first ${vectors.output.length} of ${EXAMPLE_DATA.hiddenSize} numbers.`}
          </p>
          <NumberTable name="Concatenated heads" rows={[{ label: "heads", numbers: concatenated }]} />
          {settings.stage === "hand" &&
            vectors.output.map((numbers, at) => (
              <NumberTable key={at} name={`Row ${at + 1} of W_O`} rows={[{ label: `W_O row ${at + 1}`, numbers, edit: (column, value) => edit("output", at, column, value) }]} />
            ))}
          <NumberTable name="Output" rows={[{ label: "output", numbers: result, kind: "result" }]} />
        </>
      );
    },
  },
  next: {
    title: "The next token",
    claim: "a model trained with teacher forcing drifts when it continues its own text.",
    lab: "exposure_bias",
    body: ({ pair }) => <NextTokenBars query={pair.query} settings={pair.settings} />,
  },
};

/** Numbers of all keys for the chosen query. */
function KeyTable({ pair, rows }: { readonly pair: Pair; readonly rows: readonly (readonly [string, Vector])[] }): JSX.Element {
  return (
    <NumberTable
      name={`All keys: ${rows.map(([label]) => label).join(", ")}`}
      heads={pair.vectors.keyTokens.map((token) => formatToken(token, 10))}
      chosen={pair.key}
      rows={rows.map(([label, numbers]) => ({ label, numbers: label === "score" && rows.length === 1 ? numbers.map((number, key) => (isAllowed(pair.settings.mask, pair.query, key) ? number : -Infinity)) : numbers }))}
    />
  );
}

function Result({ children }: { readonly children: ComponentChildren }): JSX.Element {
  return <p class="result">{children}</p>;
}

function Token({ text = "" }: { readonly text?: string | undefined }): JSX.Element {
  return <bdi class="token">{formatToken(text)}</bdi>;
}

function getShownHead({ vectors, settings }: Pair): Pair["vectors"]["heads"][number] {
  const head = vectors.heads[settings.stage === "model" ? 0 : settings.head];
  if (!head) throw new Error(`no head ${settings.head}`);
  return head;
}

const MAX_TERMS = 4;

function writeSum(numbers: Vector): string {
  if (numbers.length > MAX_TERMS) return `the sum of ${numbers.length} products`;
  return numbers.map((number, at) => (at === 0 ? format(number) : number < 0 ? `− ${format(-number)}` : `+ ${format(number)}`)).join(" ");
}
