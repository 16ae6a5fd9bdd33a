/** A canvas of heads that fills its place, takes hand and keyboard, and is painted once a frame at most. */

import { element } from "../panels/dom";
import { surfaceOf, themeOf } from "../panels/chart";
import type { Surroundings } from "../host";
import type { Box, Surface, Theme } from "../paint/surface";
import type { HeadPlace } from "../state";
import type { PartActions } from "./heads_view";
import { samePlace } from "./scored_heads";

export interface Drawn {
  paint(surface: Surface, theme: Theme, hovered: HeadPlace | null): void;
  /** The head at a point of the canvas. */
  at(x: number, y: number): HeadPlace | null;
  /** Where a head is on the canvas. */
  box(place: HeadPlace): Box | null;
  /** Where a key leads from the current head. */
  step(key: string): HeadPlace | null;
}

export interface Drawing {
  readonly canvas: HTMLCanvasElement;
  soon(): void;
  /** Everything has moved: what is hovered is elsewhere. */
  moved(): void;
}

export function createDrawing(
  frame: HTMLElement,
  says: string,
  { host, signal }: Surroundings,
  actions: PartActions,
  drawn: Drawn,
): Drawing {
  // "application", as the map: arrows go from head to head. The table holds the same for reading.
  const canvas = element("canvas", {
    ...{ tabindex: 0, role: "application", "aria-label": says },
    "aria-description": `Arrows go from head to head. ${actions.enters ?? "Enter opens one as a map."} The table holds their numbers.`,
  });
  let waiting = 0;
  let hovered: HeadPlace | null = null;
  const soon = (): void => {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      const { clientWidth, clientHeight } = frame;
      if (clientWidth * clientHeight === 0 || signal.aborted) return;
      Object.assign(canvas.style, { width: `${clientWidth}px`, height: `${clientHeight}px` });
      const surface = surfaceOf(canvas, clientWidth, clientHeight);
      if (surface) drawn.paint(surface, themeOf(host), hovered);
    });
  };
  const moved = (): void => {
    actions.hover(hovered, hovered && drawn.box(hovered));
    soon();
  };
  const hover = (place: HeadPlace | null): void => {
    if (samePlace(place, hovered)) return;
    hovered = place;
    moved();
  };
  const observer = new ResizeObserver(soon);
  observer.observe(frame);
  signal.addEventListener("abort", () => observer.disconnect());
  host.onTheme(soon, signal);
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const place = drawn.at(offsetX, offsetY);
    canvas.classList.toggle("pickable", place !== null);
    hover(place);
  });
  for (const left of ["pointerleave", "blur"]) canvas.addEventListener(left, () => hover(null));
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    const place = drawn.at(offsetX, offsetY);
    if (place) actions.open(place);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const place = drawn.step(event.key);
    if (place) {
      actions.choose(place);
      hover(place);
    } else if (event.key === "Enter") actions.open(null);
    else return;
    event.preventDefault();
  });
  return { canvas, soon, moved };
}
