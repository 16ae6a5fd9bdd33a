/** What surrounds a grid of heads: the names of layers and columns, and how it scrolls under them. */

import { fonts, type Box, type Surface, type Theme } from "../paint/surface";
import type { HeadId } from "../state";
import { LEFT, TOP } from "./grid_layout";

export interface Rim {
  /** The middle of each layer, downwards. */
  readonly layers: readonly number[];
  /** The name of each column, empty where layers have none in common, and its middle. */
  readonly columns: readonly (readonly [name: string, middle: number])[];
}

/** Paint the names over what has scrolled under them; those of the chosen head are bold. */
export function paintRim({ context, width, height }: Surface, theme: Theme, rim: Rim, chosen: HeadId): void {
  const write = (text: string, bold: boolean, x: number, y: number): void => {
    context.font = `${bold ? "600 " : ""}11px ${fonts.text}`;
    context.fillStyle = bold ? theme.ink : theme.muted;
    context.fillText(text, x, y);
  };
  const cover = (across: number, down: number): void => {
    context.fillStyle = theme.paper;
    context.fillRect(0, 0, across, down);
  };
  context.textBaseline = "middle";
  context.textAlign = "right";
  cover(LEFT - 3, height);
  rim.layers.forEach((middle, layer) => write(`L${layer}`, layer === chosen[0], LEFT - 6, middle));
  context.textAlign = "center";
  cover(width, TOP - 3);
  rim.columns.forEach(([name, middle], head) => write(name, head === chosen[1], middle, TOP / 2));
  cover(LEFT - 3, TOP - 3);
}

/** Scroll just enough for a box to be seen; the names cover the first pixels. */
export function reveal(frame: HTMLElement, box: Box): void {
  const within = (from: number, start: number, size: number, view: number, covered: number): number =>
    Math.min(start - covered - 2, Math.max(from, start + size + 4 - view));
  frame.scrollTop = within(frame.scrollTop, box.top, box.height, frame.clientHeight, TOP);
  frame.scrollLeft = within(frame.scrollLeft, box.left, box.width, frame.clientWidth, LEFT);
}
