/** A canvas of heads that fills its place, takes hand and keyboard, and is painted once a frame at most. */

import { element } from "../panels/dom";
import { prepareSurface, getTheme } from "../panels/chart";
import type { HostContext } from "../host";
import type { Box, Surface, Theme } from "../paint/surface";
import type { HeadId } from "../state";
import type { HeadsActions } from "./heads_view";
import { isSameHead } from "./scored_heads";

export interface HeadCanvasContent {
  paint(surface: Surface, theme: Theme, hovered: HeadId | null): void;
  /** The head at a point of the canvas. */
  findHead(x: number, y: number): HeadId | null;
  /** Where a head is on the canvas. */
  getBox(place: HeadId): Box | null;
  /** Where a key leads from the current head. */
  findNextHead(key: string): HeadId | null;
}

export interface HeadCanvas {
  readonly canvas: HTMLCanvasElement;
  soon(): void;
  /** Everything has moved: what is hovered is elsewhere. */
  moved(): void;
}

export function createHeadCanvas(
  frame: HTMLElement,
  label: string,
  { host, signal }: HostContext,
  actions: HeadsActions,
  content: HeadCanvasContent,
): HeadCanvas {
  // "application", as the map: arrows go from head to head. The table holds the same for reading.
  const canvas = element("canvas", {
    ...{ tabindex: 0, role: "application", "aria-label": label },
    "aria-description": `Arrows go from head to head. ${actions.enterHint ?? "Enter opens one as a map."} The table holds their numbers.`,
  });
  let waiting = 0;
  let hovered: HeadId | null = null;
  const scheduleDraw = (): void => {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      const { clientWidth, clientHeight } = frame;
      if (clientWidth * clientHeight === 0 || signal.aborted) return;
      Object.assign(canvas.style, { width: `${clientWidth}px`, height: `${clientHeight}px` });
      const surface = prepareSurface(canvas, clientWidth, clientHeight);
      if (surface) content.paint(surface, getTheme(host), hovered);
    });
  };
  const onMove = (): void => {
    actions.hover(hovered, hovered && content.getBox(hovered));
    scheduleDraw();
  };
  const hover = (place: HeadId | null): void => {
    if (isSameHead(place, hovered)) return;
    hovered = place;
    onMove();
  };
  const observer = new ResizeObserver(scheduleDraw);
  observer.observe(frame);
  signal.addEventListener("abort", () => observer.disconnect());
  host.onThemeChange(scheduleDraw, signal);
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const place = content.findHead(offsetX, offsetY);
    canvas.classList.toggle("pickable", place !== null);
    hover(place);
  });
  for (const left of ["pointerleave", "blur"]) canvas.addEventListener(left, () => hover(null));
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    const place = content.findHead(offsetX, offsetY);
    if (place) actions.open(place);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const place = content.findNextHead(event.key);
    if (place) {
      actions.choose(place);
      hover(place);
    } else if (event.key === "Enter") actions.open(null);
    else return;
    event.preventDefault();
  });
  return { canvas, soon: scheduleDraw, moved: onMove };
}
