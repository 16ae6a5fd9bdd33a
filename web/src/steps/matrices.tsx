/** All rows of a small head at once: Q, K and V, and the scores once they have been shown. */

import type { JSX } from "preact";
import { attendRow, getScale, type HeadVectors, type Matrix } from "./attention";
import { formatCell } from "./format";
import { STEPS } from "./predictions";
import type { Settings } from "./stages";

export interface MatricesOptions {
  readonly head: HeadVectors;
  readonly settings: Settings;
  readonly query: number;
  readonly chosenKey: number;
  readonly numShown: number;
}

export function Matrices({ head, settings, query, chosenKey, numShown }: MatricesOptions): JSX.Element {
  const { headDim, divide, temperature, mask } = settings;
  const rows = head.queries.map((_, at) => attendRow(head, at, getScale(headDim, divide, temperature), mask));
  const isShown = (step: (typeof STEPS)[number]): boolean => numShown > STEPS.indexOf(step);
  return (
    <div class="matrices">
      <NumberMatrix name="Q" matrix={head.queries} chosen={query} />
      <NumberMatrix name="K" matrix={head.keys} chosen={chosenKey} />
      <NumberMatrix name="V" matrix={head.values} chosen={chosenKey} />
      {isShown("products") && <NumberMatrix name="Q Kᵀ" matrix={rows.map(({ dots }) => dots)} chosen={query} />}
      {isShown("scale") && <NumberMatrix name="scores" matrix={rows.map(({ scores }) => scores)} chosen={query} />}
      {isShown("values") && <NumberMatrix name="head output" matrix={rows.map(({ output }) => output)} chosen={query} />}
    </div>
  );
}

function NumberMatrix({ name, matrix, chosen }: { readonly name: string; readonly matrix: Matrix; readonly chosen: number }): JSX.Element {
  return (
    <table>
      <caption>{name}</caption>
      <tbody>
        {matrix.map((row, at) => (
          <tr key={at} class={at === chosen ? "chosen" : ""}>
            {row.map((number, column) => (
              <td key={column}>{formatCell(number)}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
