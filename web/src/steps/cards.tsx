/** The steps of the stages that compute their own queries and keys: a title and the numbers. */

import type { JSX } from "preact";
import { pluralize } from "../format_numbers";
import { formatToken } from "../paint/token_text";
import { concatenateHeads, getEntropy, project, type HeadVectors, type Vector } from "./attention";
import { formatNumber as format } from "./format";
import { NextTokenBars } from "./next_token_bars";
import { NumberTable } from "./number_table";
import type { Pair, PairNumbers, StepName } from "./predictions";
import type { EditedRows, Settings, StageVectors } from "./stages";
import { Result, type Card } from "./step_list";
import { VectorStrips } from "./vector_strips";

/** A pair, and how its numbers are edited. */
export interface EditablePair extends Pair {
  edit(rows: EditedRows, row: number, column: number, value: number): void;
}

/** Cards that show the numbers of the pair alone. */
export const COMMON_CARDS = {
  products: {
    title: "Products and their sum: the dot product",
    body: ({ row, key }) => (
      <Result>
        q · k = {writeSum(row.products[key] ?? [])} = <b data-result="dot">{format(row.dots[key] ?? NaN)}</b>
      </Result>
    ),
  },
  exponential: {
    title: "Exponential",
    body: (pair) => {
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
} satisfies Partial<Record<StepName, Card<PairNumbers>>>;

export const CARDS: Record<StepName, Card<EditablePair>> = {
  ...COMMON_CARDS,
  scale: {
    title: "Divide by √dₖ",
    body: (pair) => {
      const { settings, row, key } = pair;
      const root = Math.sqrt(settings.headDim);
      const parts = [...(settings.divide ? [`√${settings.headDim} = ${format(root)}`] : []), ...(settings.temperature !== 1 ? [`temperature ${format(settings.temperature)}`] : [])];
      return (
        <>
          <KeyTable pair={pair} rows={[["q · k", row.dots], ["score", row.scores]]} />
          <Result>
            {parts.length === 0 ? "Not divided: the score is the dot product, " : `Divided by ${parts.join(" and by ")}: ${format(row.dots[key] ?? NaN)} × ${format(pair.scale)} = `}
            <b data-result="score">{format(row.scores[key] ?? NaN)}</b>
          </Result>
        </>
      );
    },
  },
  mask: {
    title: "Mask",
    body: (pair) => {
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
  weight: {
    title: "Divide by the sum: the attention weight",
    body: (pair) => {
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
    body: (pair) => {
      const { row, key, vectors, settings, edit } = pair;
      const head = getShownHead(vectors, settings);
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
    body: (pair) => {
      const { settings, vectors, query, scale, edit } = pair;
      const concatenated = concatenateHeads(vectors.heads, query, scale, settings.mask);
      const result = project(vectors.output, concatenated);
      const size = `${vectors.output.length} × ${concatenated.length}`;
      return (
        <>
          <p>
            {settings.stage === "hand"
              ? `W_O is ${size}. The texts have none, so it starts as the identity: edit it to mix the heads.`
              : settings.stage === "sentence"
                ? `The outputs of ${pluralize(vectors.heads.length, "head")}, one after the other, times W_O (${size}, random).`
                : `What this head adds to the residual stream: its output times its ${concatenated.length} columns of W_O, ${result.length} numbers.`}
          </p>
          <NumberTable name="Concatenated heads" rows={[{ label: "heads", numbers: concatenated }]} />
          {settings.stage === "hand" &&
            vectors.output.map((numbers, at) => (
              <NumberTable key={at} name={`Row ${at + 1} of W_O`} rows={[{ label: `W_O row ${at + 1}`, numbers, edit: (column, value) => edit("output", at, column, value) }]} />
            ))}
          <VectorStrips name="Output" rows={[{ label: "output", numbers: result, kind: "result" }]} />
        </>
      );
    },
  },
  next: {
    title: "The next token",
    body: ({ query, settings }) => <NextTokenBars query={query} settings={settings} />,
  },
};

/** Numbers of all keys for the chosen query. */
export function KeyTable({ pair, rows }: { readonly pair: PairNumbers; readonly rows: readonly (readonly [string, Vector])[] }): JSX.Element {
  return (
    <NumberTable name={`All keys: ${rows.map(([label]) => label).join(", ")}`} heads={pair.keyHeads} chosen={pair.key} rows={rows.map(([label, numbers]) => ({ label, numbers }))} />
  );
}

export function getShownHead(vectors: StageVectors, settings: Settings): HeadVectors {
  const head = vectors.heads[settings.stage === "model" ? 0 : settings.head];
  if (!head) throw new Error(`no head ${settings.head}`);
  return head;
}

const MAX_TERMS = 4;

function writeSum(numbers: Vector): string {
  if (numbers.length > MAX_TERMS) return `the sum of ${numbers.length} products`;
  return numbers.map((number, at) => (at === 0 ? format(number) : number < 0 ? `− ${format(-number)}` : `+ ${format(number)}`)).join(" ");
}
