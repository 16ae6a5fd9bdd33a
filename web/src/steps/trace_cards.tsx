/** The steps of a pair of a trace: those that differ from the cards of the other stages. */

import type { JSX } from "preact";
import { formatCount, pluralize } from "../format_numbers";
import type { ProjectionReport } from "../server/protocol";
import { sumElements, type Vector } from "./attention";
import { CARDS, COMMON_CARDS, KeyTable } from "./cards";
import { formatNumber as format } from "./format";
import { COMMON_MAKERS, type Prediction, type StepName } from "./predictions";
import { Result, type Card } from "./step_list";
import type { TracePair } from "./trace_row";
import { VectorStrips } from "./vector_strips";

/** A pair, and what its head adds to the residual stream as far as it is known. */
export interface ProjectedPair extends TracePair {
  readonly projection: ProjectionReport | null;
}

export const TRACE_STEPS = ["products", "scale", "mask", "exponential", "weight", "values", "output"] as const satisfies readonly StepName[];

export const TRACE_CARDS: Readonly<Partial<Record<StepName, Card<ProjectedPair>>>> = {
  ...COMMON_CARDS,
  products: { ...COMMON_CARDS.products, body: (pair) => [COMMON_CARDS.products.body(pair), <LargestProducts key="largest" products={pair.row.products[pair.key] ?? []} />] },
  scale: {
    ...CARDS.scale,
    title: "Scale",
    body: (pair) => {
      const { row, key, scale, report } = pair;
      const dim = report.vector.length;
      const bias = report.keys[key]?.bias ?? null;
      const score = row.scores[key] ?? NaN;
      return (
        <>
          <KeyTable pair={pair} rows={[["q · k", row.dots], ["× scale", row.scores]]} />
          <Result>
            {format(row.dots[key] ?? NaN)} × {format(scale)} {Math.abs(scale * Math.sqrt(dim) - 1) < 1e-6 ? `(1/√${dim}) ` : `(this model does not use 1/√${dim}) `}={" "}
            <b data-result="score">{format(score)}</b>
            {bias !== null && `; score modifiers such as a position bias add ${format(bias)}, which makes ${format(score + bias)}`}
          </Result>
        </>
      );
    },
  },
  mask: {
    ...CARDS.mask,
    body: (pair) => {
      const { row, key, report } = pair;
      return (
        <>
          <KeyTable pair={pair} rows={[["score", row.masked]]} />
          <Result>
            The mask allows {formatCount(report.visible_keys)} of {pluralize(report.num_keys, "key")} for this query
            {report.others.count > 0 && `; ${formatCount(report.others.count)} of them are summed up, exactly, as one key with the score log Σ exp(score)`}. The score of this pair is{" "}
            <b data-result="masked">{format(row.masked[key] ?? NaN)}</b>
          </Result>
        </>
      );
    },
  },
  weight: {
    ...CARDS.weight,
    body: (pair) => {
      const { row, key, report } = pair;
      const [weight, recorded] = [row.weights[key] ?? NaN, report.keys[key]?.weight ?? NaN];
      return (
        <>
          <KeyTable pair={pair} rows={[["exp", row.exponentials], ["weight", row.weights]]} />
          <Result>
            {format(row.exponentials[key] ?? NaN)} / {format(row.sum)} ={" "}
            <b data-result="weight" title={String(weight)}>
              {format(weight)}
            </b>
            . The map has {format(recorded)}; the difference is {format(Math.abs(weight - recorded))}
          </Result>
        </>
      );
    },
  },
  values: {
    ...CARDS.values,
    body: ({ row, key, report }) => {
      const value = report.keys[key]?.value;
      if (!value) return <p>The values of this trace were not recorded, so the output of the head is not known. Record with values=True for this step.</p>;
      return (
        <>
          <VectorStrips
            name="Value"
            rows={[
              { label: "v", numbers: value },
              { label: `× ${format(row.weights[key] ?? NaN)}`, numbers: row.weighted[key] ?? [] },
            ]}
          />
          <p>
            The other keys in the same way. Their sum, over all {pluralize(report.visible_keys, "visible key")}, is the output of the head; its norm is {format(getNorm(row.output))}.
          </p>
          <VectorStrips name="Output of the head" rows={[{ label: "output", numbers: row.output }]} />
        </>
      );
    },
  },
  output: {
    ...CARDS.output,
    body: ({ projection }) => {
      if (!projection?.output) return <p>{projection ? projection.problem : "reading…"}</p>;
      return (
        <>
          <p>
            The output of this head times its own columns of W_O: what it adds to the residual stream, {projection.output.length} numbers of norm {format(getNorm(projection.output))}.
          </p>
          <VectorStrips name="Added to the residual stream" rows={[{ label: "added", numbers: projection.output }]} />
        </>
      );
    },
  },
};

export function predictTrace(step: StepName, pair: TracePair): Prediction {
  if (step === "mask") return { question: "Does the mask allow this query to attend to this key?", choices: ["yes", "no"], answer: pair.row.allowed[pair.key] ? 0 : 1 };
  if (step === "output") return { question: "Through which columns of W_O does the output of this head pass?", choices: ["its own", "those of all heads"], answer: 0 };
  if (step === "next") throw new Error("a trace has no such step");
  return COMMON_MAKERS[step](pair);
}

const NUM_LARGEST = 5;

function LargestProducts({ products }: { readonly products: Vector }): JSX.Element | null {
  if (products.length <= NUM_LARGEST) return null;
  const largest = products.map((product, dim) => ({ product, dim })).sort((one, other) => Math.abs(other.product) - Math.abs(one.product)).slice(0, NUM_LARGEST);
  return <p class="soft">The largest: {largest.map(({ product, dim }) => `${format(product)} (dimension ${dim})`).join(", ")}.</p>;
}

function getNorm(vector: Vector): number {
  return Math.sqrt(sumElements(vector.map((number) => number * number)));
}
