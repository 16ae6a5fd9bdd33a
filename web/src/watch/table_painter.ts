/** Draws the table of heads and steps: one colour for each cell, names, and marks of alerts. */

import { formatCount } from "../format_numbers";
import type { Box } from "../geometry/box";
import { fitText } from "../paint/canvas_text";
import { getTable, toCss } from "../paint/colour";
import { fonts, snapToPixel, type Surface, type Theme } from "../paint/surface";
import type { StepRange, WatchTable } from "./protocol";
import { chooseLabelledColumns, getCellBox, LEFT, TOP, type Cell, type TableLayout } from "./table_layout";
import { getTicks, toEntry, type ValueScale } from "./value_scale";

const PALETTE = "magma";
/** Of cells in which a query or key was not finite: a colour that is not in the table. */
const NOT_FINITE = [0, 190, 160] as const;
const FONT = `11px ${fonts.text}`;
const BOLD = `600 11px ${fonts.text}`;

export interface AlertMark extends Cell {
  /** Whether its map can be opened. */
  readonly isOpenable: boolean;
}

export interface TableScene {
  readonly layout: TableLayout;
  /** A pixel for each cell, in the order of the rows. */
  readonly image: HTMLCanvasElement | null;
  readonly names: readonly string[];
  readonly steps: readonly StepRange[];
  readonly marks: readonly AlertMark[];
  readonly chosen: number;
  readonly hovered: Cell | null;
  readonly scroll: number;
}

/** One pixel for each cell; `rows` are the indices of heads from top to bottom. */
export function createTableImage({ values, not_finite: broken, steps }: WatchTable, rows: readonly number[], scale: ValueScale): HTMLCanvasElement | null {
  if (steps.length === 0 || rows.length === 0) return null;
  const image = new ImageData(steps.length, rows.length);
  const colours = getTable(PALETTE);
  const positions = new Map(rows.map((row, at) => [row, at]));
  const setPixel = (row: number, column: number, red: number, green: number, blue: number): void =>
    image.data.set([red, green, blue, 255], (row * steps.length + column) * 4);
  rows.forEach((row, at) => {
    values[row]?.forEach((value, column) => {
      if (value === null) return;
      const entry = 3 * toEntry(scale, value);
      setPixel(at, column, colours[entry] ?? 0, colours[entry + 1] ?? 0, colours[entry + 2] ?? 0);
    });
  });
  for (const [row, column] of broken) {
    const at = positions.get(row);
    if (at !== undefined) setPixel(at, column, ...NOT_FINITE);
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

export function paintTable(surface: Surface, theme: Theme, scene: TableScene): void {
  const { context: pen, scale } = surface;
  const { layout, image, scroll } = scene;
  const [width, height] = [layout.columns * layout.columnWidth, layout.rows * layout.rowHeight];
  pen.fillStyle = theme.panel;
  pen.fillRect(LEFT, TOP - scroll, width, height);
  if (image) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, LEFT, snapToPixel(TOP - scroll, scale), width, height);
  }
  // A gap between rows tells heads apart where they are high enough.
  if (layout.rowHeight >= 8) {
    pen.fillStyle = theme.paper;
    for (let row = 1; row < layout.rows; row++) pen.fillRect(LEFT, snapToPixel(TOP + row * layout.rowHeight - scroll, scale) - 1, width, 1);
  }
  for (const mark of scene.marks) paintMark(surface, theme, getCellBox(layout, mark, scroll), mark.isOpenable);
  const chosen = getCellBox(layout, { row: scene.chosen, column: 0 }, scroll);
  outline(surface, theme.key, { ...chosen, width }, 2);
  if (scene.hovered) outline(surface, theme.ink, getCellBox(layout, scene.hovered, scroll), 1.5);
  paintNames(surface, theme, scene);
}

function outline({ context: pen }: Surface, colour: string, box: Box, thickness: number): void {
  pen.strokeStyle = colour;
  pen.lineWidth = thickness;
  pen.strokeRect(box.left - 0.5, box.top - 0.5, Math.max(2, box.width) + 1, box.height);
}

/** A triangle, filled if the map of the moment can be opened. */
function paintMark({ context: pen }: Surface, theme: Theme, box: Box, isFilled: boolean): void {
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const size = Math.min(isFilled ? 5 : 3, box.height / 2 - 1.5);
  pen.beginPath();
  pen.moveTo(x, y - size);
  pen.lineTo(x + size, y + size * 0.8);
  pen.lineTo(x - size, y + size * 0.8);
  pen.closePath();
  pen.lineJoin = "round";
  pen.lineWidth = isFilled ? 3 : 2.5;
  pen.strokeStyle = "#000000";
  pen.stroke();
  pen.lineWidth = isFilled ? 1.5 : 1;
  pen.strokeStyle = isFilled ? "#ffffff" : "#c8d0d8";
  pen.stroke();
  if (!isFilled) return;
  pen.fillStyle = theme.key;
  pen.fill();
}

/** Heads on the left and steps on top, over what has scrolled under them. */
function paintNames({ context: pen, width, height }: Surface, theme: Theme, { layout, names, steps, chosen, scroll }: TableScene): void {
  pen.fillStyle = theme.paper;
  pen.fillRect(0, 0, LEFT - 2, height);
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  names.forEach((name, row) => {
    const { top } = getCellBox(layout, { row, column: 0 }, scroll);
    if (top + layout.rowHeight < 0 || top > height) return;
    pen.fillStyle = row === chosen ? theme.ink : theme.muted;
    const font = row === chosen ? BOLD : FONT;
    const text = fitText(pen, font, name, LEFT - 10);
    pen.font = font;
    pen.fillText(text, LEFT - 6, top + layout.rowHeight / 2);
  });
  pen.fillStyle = theme.paper;
  pen.fillRect(0, 0, width, TOP - 2);
  pen.font = FONT;
  pen.fillStyle = theme.muted;
  pen.fillText("step", LEFT - 6, TOP / 2);
  pen.textAlign = "left";
  for (const column of chooseLabelledColumns(layout, 64)) {
    const text = formatCount(steps[column]?.[0] ?? 0);
    const { left } = getCellBox(layout, { row: 0, column }, 0);
    if (left + pen.measureText(text).width <= width) pen.fillText(text, left, TOP / 2);
  }
}

/** The colours from the best to the worst, with values. */
export function paintScale(surface: Surface, theme: Theme, scale: ValueScale, name: string): void {
  const { context: pen, width } = surface;
  const bar = { left: 12, top: 22, width: Math.min(360, width - 24), height: 10 };
  const colours = getTable(PALETTE);
  for (let x = 0; x < bar.width; x++) {
    const entry = Math.round((255 * x) / bar.width);
    pen.fillStyle = toCss(colours, scale.isReversed ? 255 - entry : entry);
    pen.fillRect(bar.left + x, bar.top, 1, bar.height);
  }
  pen.font = FONT;
  pen.fillStyle = theme.muted;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText(`${name}${scale.kind === "log" ? ", logarithmic" : ""}`, bar.left, 11);
  let right = -Infinity;
  for (const [share, text] of getTicks(scale)) {
    const half = pen.measureText(text).width / 2;
    const x = Math.max(bar.left, Math.min(bar.left + bar.width - 2 * half, bar.left + share * bar.width - half));
    if (x < right + 8 && share < 1) continue;
    pen.fillText(text, x, bar.top + bar.height + 9);
    right = x + 2 * half;
  }
}

/** One statistic of a head over the steps as a line, from 0 to its largest value. */
export function paintSeries(surface: Surface, theme: Theme, values: readonly (number | null)[], steps: readonly StepRange[], alerts: readonly number[], formatted: string): void {
  const { context: pen, width, height } = surface;
  const box = { left: 4, top: 16, width: width - 8, height: height - 34 };
  const highest = Math.max(0, ...values.filter((value) => value !== null)) || 1;
  const toX = (column: number): number => box.left + ((column + 0.5) / Math.max(1, values.length)) * box.width;
  const toY = (value: number): number => box.top + box.height * (1 - Math.max(0, value) / highest);
  pen.fillStyle = theme.panel;
  pen.fillRect(box.left, box.top, box.width, box.height);
  pen.fillStyle = theme.key;
  for (const column of alerts) pen.fillRect(toX(column) - 0.5, box.top, 1, box.height);
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  pen.beginPath();
  let isDrawing = false;
  values.forEach((value, column) => {
    if (value === null) isDrawing = false;
    else if (isDrawing) pen.lineTo(toX(column), toY(value));
    else {
      pen.moveTo(toX(column), toY(value));
      pen.lineTo(toX(column) + 0.5, toY(value));
      isDrawing = true;
    }
  });
  pen.stroke();
  pen.font = FONT;
  pen.fillStyle = theme.muted;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText(formatted, box.left, 8);
  pen.fillText(formatCount(steps[0]?.[0] ?? 0), box.left, height - 8);
  pen.textAlign = "right";
  pen.fillText(formatCount(steps.at(-1)?.[1] ?? 0), box.left + box.width, height - 8);
}
