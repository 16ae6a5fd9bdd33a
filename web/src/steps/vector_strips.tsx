/** Long vectors as strips of colours, one above the other; the numbers are in a table that opens. */

import type { JSX } from "preact";
import { formatNumber } from "./format";
import { NumberTable, type NumberRow } from "./number_table";

export interface VectorStripsOptions {
  /** What a screen reader calls the strips. */
  readonly name: string;
  readonly rows: readonly NumberRow[];
}

/** Vectors of at most so many numbers are shown as numbers only. */
const MAX_NUMBERS = 16;
const HEIGHT = 18;

export function VectorStrips({ name, rows }: VectorStripsOptions): JSX.Element {
  const count = Math.max(0, ...rows.map(({ numbers }) => numbers.length));
  if (count <= MAX_NUMBERS) return <NumberTable name={name} rows={rows} />;
  return (
    <div class="strips">
      {rows.map(({ label, numbers, kind }) => {
        const largest = Math.max(1e-12, ...numbers.map(Math.abs));
        return (
          <div key={label} class="strip">
            <span class={`number-label ${kind ?? ""}`}>{label}</span>
            <svg viewBox={`0 0 ${count} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${label}: ${count} numbers, the largest ${formatNumber(largest)} in size`}>
              {numbers.map((number, at) => (
                <rect key={at} class={number < 0 ? "minus" : ""} x={at} width="1" height={HEIGHT} fill-opacity={(Math.abs(number) / largest).toFixed(3)}>
                  <title>
                    {label}, dimension {at}: {formatNumber(number)}
                  </title>
                </rect>
              ))}
            </svg>
          </div>
        );
      })}
      <details>
        <summary>
          {name}: all {count} numbers
        </summary>
        <NumberTable name={name} rows={rows} />
      </details>
    </div>
  );
}
