/** Rows of numbers in aligned columns, which wrap; numbers of some rows can be edited. */

import { useRef, useState } from "preact/hooks";
import type { JSX } from "preact";
import type { Vector } from "./attention";
import { formatCell } from "./format";

export interface NumberRow {
  readonly label: string;
  /** NaN is not shown yet. */
  readonly numbers: Vector;
  readonly kind?: "query" | "key" | "result";
  readonly edit?: (column: number, value: number) => void;
}

export interface NumberTableOptions {
  /** What a screen reader calls the table. */
  readonly name: string;
  readonly rows: readonly NumberRow[];
  /** The head of each column, such as a token; columns are counted without. */
  readonly heads?: readonly string[];
  readonly chosen?: number;
}

interface Cell {
  readonly row: number;
  readonly column: number;
}

const MOVES: Readonly<Record<string, readonly [number, number]>> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export function NumberTable({ name, rows, heads, chosen }: NumberTableOptions): JSX.Element {
  const holder = useRef<HTMLDivElement>(null);
  const [active, setActive] = useState<Cell>(() => ({ row: Math.max(0, rows.findIndex(({ edit }) => edit)), column: 0 }));
  const [isEditing, setEditing] = useState(false);
  const count = Math.max(...rows.map(({ numbers }) => numbers.length));
  const largest = rows.map(({ numbers }) => Math.max(1e-9, ...numbers.filter(Number.isFinite).map(Math.abs)));
  const focus = (cell: Cell): void => {
    setActive(cell);
    holder.current?.querySelector<HTMLElement>(`[data-cell="${cell.row}/${cell.column}"]`)?.focus();
  };
  const move = (event: KeyboardEvent): void => {
    const step = MOVES[event.key];
    if (!step || isEditing) return;
    const editable = rows.flatMap(({ edit }, row) => (edit ? [row] : []));
    const next = editable[editable.indexOf(active.row) + step[0]] ?? active.row;
    event.preventDefault();
    focus({ row: next, column: Math.min(count - 1, Math.max(0, active.column + step[1])) });
  };
  const finish = (cell: Cell, text: string | null): void => {
    const value = text === null ? NaN : Number(text.replace("−", "-").replace(",", "."));
    if (text !== null && text.trim() !== "" && Number.isFinite(value)) rows[cell.row]?.edit?.(cell.column, Math.max(-1e6, Math.min(1e6, value)));
    setEditing(false);
    requestAnimationFrame(() => focus(cell));
  };
  return (
    <div class="numbers" role="group" aria-label={name}>
      <div class="numbers-labels">
        {heads && <div class="number-head">&nbsp;</div>}
        {rows.map(({ label, kind }) => (
          <div key={label} class={`number-label ${kind ?? ""}`}>
            {label}
          </div>
        ))}
      </div>
      <div class="numbers-columns" ref={holder} onKeyDown={move}>
        {Array.from({ length: count }, (_, column) => (
          <div key={column} class={`number-column${column === chosen ? " chosen" : ""}`}>
            {heads && (
              <div class="number-head token" title={heads[column]}>
                <bdi>{heads[column]}</bdi>
              </div>
            )}
            {rows.map(({ label, numbers, kind, edit }, row) => {
              const number = numbers[column];
              const place = { row, column };
              const style = { backgroundColor: getTint(number, largest[row] ?? 1, kind) };
              const title = number !== undefined && Number.isFinite(number) ? String(number) : "";
              if (!edit || number === undefined)
                return (
                  <div key={label} class={`number${number === -Infinity ? " masked" : ""}`} style={style} title={title}>
                    {number === undefined ? "" : formatCell(number)}
                  </div>
                );
              if (isEditing && active.row === row && active.column === column)
                return (
                  <input
                    key={label}
                    class="number"
                    aria-label={`${label}, number ${column + 1}`}
                    inputMode="decimal"
                    value={String(Number(number.toPrecision(6)))}
                    ref={(input) => input?.select()}
                    onKeyDown={(event) => {
                      if (event.key === "Enter") finish(place, event.currentTarget.value);
                      if (event.key === "Escape") finish(place, null);
                    }}
                    onBlur={(event) => isEditing && finish(place, event.currentTarget.value)}
                  />
                );
              return (
                <button
                  key={label}
                  type="button"
                  class="number"
                  style={style}
                  title={`${title}; click to edit`}
                  data-cell={`${row}/${column}`}
                  aria-label={`${label}, number ${column + 1}: ${formatCell(number)}; edit`}
                  tabIndex={active.row === row && Math.min(active.column, count - 1) === column ? 0 : -1}
                  onClick={() => {
                    setActive(place);
                    setEditing(true);
                  }}
                >
                  {formatCell(number)}
                </button>
              );
            })}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Blue above zero, orange below, stronger the farther from it. */
function getTint(number: number | undefined, largest: number, kind: NumberRow["kind"]): string {
  if (number === undefined || !Number.isFinite(number) || kind === "result") return "";
  const strength = (0.34 * Math.min(1, Math.abs(number) / largest)).toFixed(3);
  return `rgb(var(--${number < 0 ? "negative" : "gaze"}-colour) / ${strength})`;
}
