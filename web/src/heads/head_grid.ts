/** A scrolling grid with one cell per head on a canvas: layers down, heads across. Only cells in view are painted. */

import type { Box } from "../geometry/box";
import type { HostContext } from "../host";
import { element } from "../panels/dom";
import { fonts, snapToPixel, type Surface, type Theme } from "../paint/surface";
import type { HeadId } from "../state";
import { findHeadAt, getCellBox, getExtent, LEFT, stepHead, TOP, type CellSize } from "./grid_layout";
import { createHeadCanvas } from "./head_canvas";
import { getCurrentHead, type HeadsActions, type HeadsScene } from "./heads_scene";
import { isSameHead } from "./scored_heads";

export interface Outline {
  readonly colour: string;
  readonly width: number;
  /** From the cell to the middle of the line. */
  readonly margin: number;
}

export interface HeadGridOptions<Scene> {
  /** For screen readers. */
  readonly label: string;
  /** The number of heads in each layer. */
  countHeads(scene: Scene): readonly number[];
  /** The size of a cell in a frame of this width. */
  getCellSize(heads: readonly number[], frameWidth: number): CellSize;
  getRowName(scene: Scene, layer: number): string;
  /** "" where the heads of a column have different names. */
  getColumnName(scene: Scene, head: number): string;
  /** Called once per frame, before the cells are painted. */
  beginFrame?(surface: Surface, theme: Theme, scene: Scene): void;
  paintCell(surface: Surface, theme: Theme, id: HeadId, box: Box, scene: Scene): void;
  getOutline(theme: Theme, isCurrent: boolean): Outline;
}

export interface HeadGrid<Scene> {
  readonly frame: HTMLElement;
  update(scene: Scene): void;
  /** The first layer in view. */
  findFirstLayer(): number;
  getCellSize(): CellSize;
}

export function createHeadGrid<Scene extends HeadsScene>(
  context: HostContext,
  actions: HeadsActions,
  options: HeadGridOptions<Scene>,
): HeadGrid<Scene> {
  const room = element("div", { class: "heads-room" });
  const frame = element("div", { class: "heads-frame" }, room);
  /** Set by the first update. */
  let scene!: Scene;

  const getHeads = (): readonly number[] => options.countHeads(scene);
  const getSize = (): CellSize => options.getCellSize(getHeads(), frame.clientWidth);
  /** Where a cell is on the canvas. */
  const getVisibleBox = (id: HeadId): Box => {
    const box = getCellBox(id, getSize());
    return { ...box, left: box.left - frame.scrollLeft, top: box.top - frame.scrollTop };
  };
  const paint = (surface: Surface, theme: Theme, hovered: HeadId | null): void => {
    options.beginFrame?.(surface, theme, scene);
    for (const [layer, count] of getHeads().entries()) {
      const { top, height } = getVisibleBox([layer, 0]);
      if (top + height < TOP || top > surface.height) continue;
      for (let head = 0; head < count; head++) paintHead(surface, theme, [layer, head], hovered);
    }
    paintLabels(surface, theme);
  };
  const paintHead = (surface: Surface, theme: Theme, id: HeadId, hovered: HeadId | null): void => {
    const { context: pen, scale } = surface;
    const cell = getVisibleBox(id);
    const box = { ...cell, left: snapToPixel(cell.left, scale), top: snapToPixel(cell.top, scale) };
    options.paintCell(surface, theme, id, box, scene);
    const isCurrent = isSameHead(id, getCurrentHead(scene.state));
    if (!isCurrent && !isSameHead(id, hovered)) return;
    const { colour, width, margin } = options.getOutline(theme, isCurrent);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(box.left - margin, box.top - margin, box.width + 2 * margin, box.height + 2 * margin);
  };
  /** The names of layers and columns, over what has scrolled under them; those of the current head are bold. */
  const paintLabels = ({ context: pen, width, height }: Surface, theme: Theme): void => {
    const size = getSize();
    const [currentLayer, currentHead] = getCurrentHead(scene.state);
    const write = (text: string, isBold: boolean, x: number, y: number): void => {
      pen.font = `${isBold ? "600 " : ""}11px ${fonts.text}`;
      pen.fillStyle = isBold ? theme.ink : theme.muted;
      pen.fillText(text, x, y);
    };
    const cover = (across: number, down: number): void => {
      pen.fillStyle = theme.paper;
      pen.fillRect(0, 0, across, down);
    };
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    cover(LEFT - 3, height);
    for (const layer of getHeads().keys())
      write(options.getRowName(scene, layer), layer === currentLayer, LEFT - 6, getVisibleBox([layer, 0]).top + size.height / 2);
    pen.textAlign = "center";
    cover(width, TOP - 3);
    for (let head = 0; head < Math.max(0, ...getHeads()); head++) {
      const name = options.getColumnName(scene, head);
      write(name, head === currentHead, getVisibleBox([0, head]).left + size.width / 2, TOP / 2);
    }
    cover(LEFT - 3, TOP - 3);
  };

  const canvas = createHeadCanvas(frame, options.label, context, actions, {
    paint,
    getBox: getVisibleBox,
    findHead: (x, y) =>
      x < LEFT || y < TOP ? null : findHeadAt(x + frame.scrollLeft, y + frame.scrollTop, getHeads(), getSize()),
    findNextHead: (key) => stepHead(getCurrentHead(scene.state), key, getHeads()),
  });
  room.append(canvas.element);
  frame.addEventListener("scroll", canvas.updateHover);
  return {
    frame,
    findFirstLayer: () => (scene ? (findHeadAt(LEFT, TOP + frame.scrollTop, getHeads(), getSize())?.[0] ?? 0) : 0),
    getCellSize: getSize,
    update(newScene) {
      const current = getCurrentHead(newScene.state);
      const hasMoved = !scene || !isSameHead(getCurrentHead(scene.state), current);
      scene = newScene;
      const { width, height } = getExtent(getHeads(), getSize());
      Object.assign(room.style, { width: `${width}px`, height: `${height}px` });
      if (hasMoved) scrollToBox(frame, getCellBox(current, getSize()));
      canvas.scheduleDraw();
    },
  };
}

/** Scroll just enough to show a box; the labels cover the first pixels. */
function scrollToBox(frame: HTMLElement, box: Box): void {
  const clamp = (from: number, start: number, size: number, view: number, covered: number): number =>
    Math.min(start - covered - 2, Math.max(from, start + size + 4 - view));
  frame.scrollTop = clamp(frame.scrollTop, box.top, box.height, frame.clientHeight, TOP);
  frame.scrollLeft = clamp(frame.scrollLeft, box.left, box.width, frame.clientWidth, LEFT);
}
