/** A canvas with heads: fills its frame, handles pointer and keyboard, and is painted at most once per frame. */

import { element } from "../panels/dom";
import { prepareSurface } from "../paint/canvas";
import type { HostContext } from "../host";
import type { Box } from "../geometry/box";
import { themes, type Surface, type Theme } from "../paint/surface";
import type { HeadId } from "../state";
import type { HeadsActions } from "./heads_scene";
import { isSameHead } from "./scored_heads";

export interface HeadCanvasContent {
  paint(surface: Surface, theme: Theme, hovered: HeadId | null): void;
  /** The head at a point of the canvas. */
  findHead(x: number, y: number): HeadId | null;
  /** Where a head is on the canvas. */
  getBox(id: HeadId): Box | null;
  /** Where a key leads from the current head. */
  findNextHead(key: string): HeadId | null;
}

export interface HeadCanvas {
  readonly element: HTMLCanvasElement;
  scheduleDraw(): void;
  /** The content has moved: the hovered head is elsewhere. */
  updateHover(): void;
}

export function createHeadCanvas(
  frame: HTMLElement,
  label: string,
  { host, signal }: HostContext,
  actions: HeadsActions,
  content: HeadCanvasContent,
): HeadCanvas {
  // "application", as for the map: arrows move between heads. The table has the same content.
  const canvas = element("canvas", {
    ...{ tabindex: 0, role: "application", "aria-label": label },
    "aria-description": `Arrows go from head to head. ${actions.enterHint ?? "Enter opens one as a map."} The table holds their numbers.`,
  });
  let frameRequest = 0;
  let hovered: HeadId | null = null;
  const scheduleDraw = (): void => {
    frameRequest ||= requestAnimationFrame(() => {
      frameRequest = 0;
      const { clientWidth, clientHeight } = frame;
      if (clientWidth * clientHeight === 0 || signal.aborted) return;
      Object.assign(canvas.style, { width: `${clientWidth}px`, height: `${clientHeight}px` });
      const surface = prepareSurface(canvas, clientWidth, clientHeight);
      if (surface) content.paint(surface, themes[host.getTheme()], hovered);
    });
  };
  const updateHover = (): void => {
    actions.hover(hovered, hovered && content.getBox(hovered));
    scheduleDraw();
  };
  const hover = (id: HeadId | null): void => {
    if (isSameHead(id, hovered)) return;
    hovered = id;
    updateHover();
  };
  const observer = new ResizeObserver(scheduleDraw);
  observer.observe(frame);
  signal.addEventListener("abort", () => observer.disconnect());
  host.onThemeChange(scheduleDraw, signal);
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const id = content.findHead(offsetX, offsetY);
    canvas.classList.toggle("pickable", id !== null);
    hover(id);
  });
  for (const left of ["pointerleave", "blur"]) canvas.addEventListener(left, () => hover(null));
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    const id = content.findHead(offsetX, offsetY);
    if (id) actions.open(id);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const id = content.findNextHead(event.key);
    if (id) {
      actions.choose(id);
      hover(id);
    } else if (event.key === "Enter") actions.open(null);
    else return;
    event.preventDefault();
  });
  return { element: canvas, scheduleDraw, updateHover };
}
