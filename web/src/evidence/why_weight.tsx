/** How one weight is computed: from the dot product of query and key to the softmax, and times the norm of the value. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatMeasure, formatWeight } from "../format_numbers";
import type { WeightReport } from "../server/protocol";
import { useResponse } from "./use_response";

export interface WhyOptions {
  /** Names the link. */
  readonly path: string;
  load(path: string, signal: AbortSignal): Promise<WeightReport>;
  /** The page that computes the weight step by step; null where it is not served. */
  readonly lesson: string | null;
}

/** Loads when it is opened. */
export function Why({ path, load, lesson }: WhyOptions): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const { value, isStale, problem } = useResponse(isOpen ? path : null, (signal) => load(path, signal));
  return (
    <details class="why" open={isOpen} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>Why this weight</summary>
      {isOpen && (isStale || !value) && <p class="soft">{problem ?? "reading…"}</p>}
      {isOpen && !isStale && value && <Steps {...value} />}
      {isOpen && lesson !== null && (
        <p class="soft">
          <a href={lesson}>Compute this weight step by step</a>
        </p>
      )}
    </details>
  );
}

/** The steps of the computation, each a name and its numbers. */
export function listSteps(why: WeightReport): (readonly [name: string, numbers: string])[] {
  const { dot, scale, score, bias, masked, log_sum_exp: total, weight, value_norm: norm } = why;
  const steps: (readonly [string, string])[] = [
    ["q · k", formatMeasure(dot)],
    ["× scale", `${formatMeasure(dot)} × ${formatMeasure(scale)} = ${formatMeasure(dot * scale)}`],
  ];
  if (bias !== null && score !== null) steps.push(["+ position bias", `${formatMeasure(dot * scale)} ${formatSigned(bias)} = ${formatMeasure(score)}`]);
  steps.push(["mask", masked ? "masked: the score is −∞" : "allowed"]);
  if (!masked && score !== null && total !== null) steps.push(["softmax", `exp(${formatMeasure(score)} ${formatSigned(-total)}) = ${formatWeight(weight)}`]);
  steps.push(["× |v|", norm === null ? "values were not recorded" : `${formatWeight(weight)} × ${formatMeasure(norm)} = ${formatMeasure(weight * norm)}`]);
  return steps;
}

function formatSigned(value: number): string {
  return `${value < 0 ? "−" : "+"} ${formatMeasure(Math.abs(value))}`;
}

function Steps(why: WeightReport): JSX.Element {
  return (
    <>
      <dl class="why-steps">
        {listSteps(why).map(([name, numbers]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{numbers}</dd>
          </div>
        ))}
      </dl>
      {why.frequencies && why.frequencies.length > 0 && <Frequencies {...why} frequencies={why.frequencies} />}
    </>
  );
}

const [WIDTH, HEIGHT] = [296, 64];

/** A bar for each rotary pair, from fast to slow; up adds to q·k, down takes away. */
function Frequencies({ dot, frequencies }: WeightReport & { readonly frequencies: NonNullable<WeightReport["frequencies"]> }): JSX.Element {
  const bars = [...frequencies].sort((one, other) => one.period - other.period);
  const most = Math.max(...bars.map(({ product }) => Math.abs(product)), 1e-12);
  const [step, middle] = [WIDTH / bars.length, HEIGHT / 2];
  const [first, last] = [bars[0], bars.at(-1)];
  const fast = bars.slice(0, Math.ceil(bars.length / 2)).reduce((sum, { product }) => sum + product, 0);
  return (
    <>
      <h4>q · k by rotary frequency</h4>
      <svg class="frequencies" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`The share of each of ${bars.length} rotary frequencies in q · k, from fast to slow`}>
        <path d={`M0 ${middle}H${WIDTH}`} />
        {bars.map(({ dims, period, product }, index) => {
          const height = (Math.abs(product) / most) * middle;
          return (
            <rect key={index} class={product < 0 ? "minus" : ""} x={index * step} width={Math.max(1, step - 1)} y={product < 0 ? middle : middle - height} height={height}>
              <title>
                {formatSigned(product)}: components {dims[0]} and {dims[1]}, one turn in {formatMeasure(period)} tokens
              </title>
            </rect>
          );
        })}
      </svg>
      <p class="caption soft">
        From one turn in {formatMeasure(first?.period ?? NaN)} tokens (left) to one in {formatMeasure(last?.period ?? NaN)} (right). The fast half, which depends on
        the distance, adds {formatMeasure(fast)}; the slow half, mostly content, {formatMeasure(dot - fast)}.
      </p>
    </>
  );
}
