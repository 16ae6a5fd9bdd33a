/** Where heads and steps are on the canvas: heads down, steps across. CSS pixels. */

import type { Box } from "../geometry/box";
import type { StepRange } from "./protocol";

/** Room for the names of heads on the left and of steps on top. */
export const LEFT = 76;
export const TOP = 22;
const MIN_ROW = 13;
const MAX_ROW = 44;
const MAX_COLUMN = 40;

export interface TableLayout {
  readonly rows: number;
  readonly columns: number;
  readonly rowHeight: number;
  readonly columnWidth: number;
}

export interface Cell {
  /** Position from the top, not the index of the head. */
  readonly row: number;
  readonly column: number;
}

/** Rows fill the height if they are not too small or too large; columns fill the width. */
export function layoutTable(width: number, height: number, rows: number, columns: number): TableLayout {
  const rowHeight = Math.max(MIN_ROW, Math.min(MAX_ROW, Math.floor((height - TOP - 4) / Math.max(1, rows))));
  return { rows, columns, rowHeight, columnWidth: Math.min(MAX_COLUMN, Math.max(0, width - LEFT - 8) / Math.max(1, columns)) };
}

/** The height of all rows, with the names of steps. */
export function getTableHeight({ rows, rowHeight }: TableLayout): number {
  return TOP + rows * rowHeight + 4;
}

/** The number of columns that have at least a pixel each. */
export function countColumns(width: number): number {
  return Math.max(1, Math.min(4096, Math.floor(width - LEFT - 8)));
}

/** The box of a cell, from the corner of the canvas; `scroll` is how far the rows have moved up. */
export function getCellBox({ rowHeight, columnWidth }: TableLayout, { row, column }: Cell, scroll: number): Box {
  return { left: LEFT + column * columnWidth, top: TOP + row * rowHeight - scroll, width: columnWidth, height: rowHeight };
}

/** The cell at a point of the canvas. */
export function findCell({ rows, columns, rowHeight, columnWidth }: TableLayout, x: number, y: number, scroll: number): Cell | null {
  if (x < LEFT || y < TOP || columnWidth <= 0) return null;
  const [row, column] = [Math.floor((y - TOP + scroll) / rowHeight), Math.floor((x - LEFT) / columnWidth)];
  return row < rows && column < columns ? { row, column } : null;
}

/** The column of a step; null if it is before the first or after the last one. */
export function findColumn(steps: readonly StepRange[], step: number): number | null {
  let [low, high] = [0, steps.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const [first, last] = steps[middle] ?? [0, 0];
    if (step < first) high = middle - 1;
    else if (step > last) low = middle + 1;
    else return middle;
  }
  return null;
}

/** The columns whose steps are written, with at least `gap` pixels from one to the next. */
export function chooseLabelledColumns({ columns, columnWidth }: TableLayout, gap: number): number[] {
  if (columns === 0 || columnWidth <= 0) return [];
  const every = Math.max(1, Math.ceil(gap / columnWidth));
  return Array.from({ length: Math.ceil(columns / every) }, (_, at) => at * every);
}

const KEY_STEPS: Readonly<Record<string, readonly [down: number, right: number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

/** The cell that a key leads to; null for other keys. */
export function stepCell({ rows, columns }: TableLayout, { row, column }: Cell, key: string): Cell | null {
  const step = KEY_STEPS[key];
  const clamp = (value: number, count: number): number => Math.max(0, Math.min(count - 1, value));
  return step ? { row: clamp(row + step[0], rows), column: clamp(column + step[1], columns) } : null;
}
