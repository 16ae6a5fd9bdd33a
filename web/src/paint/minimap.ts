// The whole matrix small, with a frame around what the map shows.
import { computeFitZoom, type Viewport } from "../geometry/viewport";
import { paintHatch } from "./hatch";
import type { Box } from "../geometry/box";
import { clipTo, fonts, type Surface, type Theme } from "./surface";

/** Shown as soon as a part of the matrix is out of view. */
export function isMinimapShown(view: Viewport): boolean {
  return view.zoom > 1.001 * computeFitZoom(view.queries, view.keys, view);
}

/** Pixels per token in the minimap. */
export function getMinimapZoom(box: Box, view: Viewport): number {
  return Math.min(box.width / view.keys, box.height / view.queries);
}

export interface Overview {
  picture: CanvasImageSource;
  /** Tokens that the picture's bins cover; past the end in the last bin. */
  queries: number;
  keys: number;
}

export function paintMinimap(surface: Surface, box: Box, theme: Theme, view: Viewport, whole: Overview | null): void {
  const { context } = surface;
  const zoom = getMinimapZoom(box, view);
  const [width, height] = [view.keys * zoom, view.queries * zoom];
  context.fillStyle = theme.paper;
  context.fillRect(box.left - 3, box.top - 3, width + 6, height + 6);
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.strokeRect(box.left - 2.5, box.top - 2.5, width + 5, height + 5);
  const inner = { left: box.left, top: box.top, width, height };
  clipTo(surface, inner, () => {
    paintHatch(surface, inner, theme);
    context.imageSmoothingEnabled = false;
    if (whole) context.drawImage(whole.picture, box.left, box.top, whole.keys * zoom, whole.queries * zoom);
  });
  const frame = {
    left: box.left + view.key * zoom,
    top: box.top + view.query * zoom,
    width: Math.max(4, Math.min(width, (view.width / view.zoom) * zoom)),
    height: Math.max(4, Math.min(height, (view.height / view.zoom) * zoom)),
  };
  for (const [colour, thickness] of [["#000000", 4], ["#ffffff", 2]] as const) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.strokeRect(frame.left, frame.top, frame.width, frame.height);
  }
  if (!whole) {
    context.fillStyle = theme.muted;
    context.font = `10px ${fonts.text}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText("loading", box.left + width / 2, box.top + height / 2);
  }
}
