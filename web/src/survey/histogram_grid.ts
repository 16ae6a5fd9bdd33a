/** All heads as small histograms of one statistic, layers down and heads across, on a ground as strong as the mean. */

import { createHeadCanvas } from "../heads/head_canvas";
import { getCurrentHead, isFaded, type HeadsActions } from "../heads/heads_view";
import { isSameHead } from "../heads/scored_heads";
import { GAP, LEFT, stepHead, TOP } from "../heads/grid_layout";
import { paintRim, reveal, type Rim } from "../heads/grid_labels";
import type { HostContext } from "../host";
import { element } from "../panels/dom";
import { snapToPixel, type Box, type Surface, type Theme } from "../paint/surface";
import type { HeadId } from "../state";
import { paintBars, toPosition } from "./histogram";
import type { SurveyPart } from "./survey_page";
import type { SurveyScene } from "./survey_scene";

/** CSS pixels. */
const HEIGHT = 36;
const NARROWEST = 28;
const WIDEST = 96;
/** How strong the ground is at the end of the scale. */
const STRONGEST = 0.42;

export function createHistogramGrid(around: HostContext, actions: HeadsActions): SurveyPart {
  const room = element("div", { class: "heads-room" });
  const frame = element("div", { class: "heads-frame" }, room);
  /** There before anything is painted. */
  let scene!: SurveyScene;

  const heads = (): readonly number[] => scene.about.layers.map(({ numbers }) => numbers.length);
  const width = (): number => {
    const fits = (frame.clientWidth - LEFT) / Math.max(1, ...heads()) - GAP;
    return Math.floor(Math.min(WIDEST, Math.max(NARROWEST, fits)));
  };
  const boxOf = ([layer, head]: HeadId): Box => ({
    ...{ left: LEFT + head * (width() + GAP), top: TOP + layer * (HEIGHT + GAP) },
    ...{ width: width(), height: HEIGHT },
  });
  /** Where a cell is on the canvas. */
  const seen = (place: HeadId): Box => {
    const box = boxOf(place);
    return { ...box, left: box.left - frame.scrollLeft, top: box.top - frame.scrollTop };
  };
  const paint = (surface: Surface, theme: Theme, hovered: HeadId | null): void => {
    for (const [layer, count] of heads().entries()) {
      const { top, height } = seen([layer, 0]);
      if (top + height < TOP || top > surface.height) continue;
      for (let head = 0; head < count; head++) paintHead(surface, theme, [layer, head], hovered);
    }
    paintRim(surface, theme, rim(), getCurrentHead(scene.state));
  };
  const paintHead = (surface: Surface, theme: Theme, place: HeadId, hovered: HeadId | null): void => {
    const { context, scale } = surface;
    const cell = seen(place);
    const box = { ...cell, left: snapToPixel(cell.left, scale), top: snapToPixel(cell.top, scale) };
    const { histograms, statistic, state } = scene;
    const shares = histograms?.shares[place[0]]?.[place[1]] ?? [];
    const mean = scene.heads.get(place.join())?.scores[statistic];
    const findHead = histograms && mean !== undefined ? toPosition(histograms.edges, mean) : null;
    const faded = isFaded(scene, place) ? 0.2 : 1;
    const fill = (colour: string, alpha: number): void => {
      context.globalAlpha = alpha * faded;
      context.fillStyle = colour;
      context.fillRect(box.left, box.top, box.width, box.height);
      context.globalAlpha = faded;
    };
    fill(theme.panel, 1);
    if (findHead !== null) fill(theme.accent, findHead * STRONGEST);
    if (shares.length > 0) paintBars(surface, box, theme, shares, findHead);
    context.globalAlpha = 1;
    const current = isSameHead(place, getCurrentHead(state));
    if (!current && !isSameHead(place, hovered)) return;
    context.strokeStyle = current ? theme.ink : theme.muted;
    context.lineWidth = 2;
    context.strokeRect(box.left - 1, box.top - 1, box.width + 2, box.height + 2);
  };
  const rim = (): Rim => ({
    layers: heads().map((_, layer) => seen([layer, 0]).top + HEIGHT / 2),
    columns: Array.from({ length: Math.max(0, ...heads()) }, (_, head) => {
      const number = scene.about.layers[0]?.numbers[head];
      // Layers of which other heads were surveyed have no name in common for a column.
      const shared = number !== undefined && scene.about.layers.every(({ numbers }) => numbers[head] === number);
      return [shared ? `H${number}` : "", seen([0, head]).left + width() / 2];
    }),
  });
  const at = (x: number, y: number): HeadId | null => {
    if (x < LEFT || y < TOP) return null;
    const layer = Math.floor((y + frame.scrollTop - TOP) / (HEIGHT + GAP));
    const head = Math.floor((x + frame.scrollLeft - LEFT) / (width() + GAP));
    return head < (heads()[layer] ?? 0) ? [layer, head] : null;
  };
  const drawing = createHeadCanvas(frame, "All heads as histograms: layers down, heads across", around, actions, {
    ...{ paint, findHead: at, getBox: seen },
    findNextHead: (key) => stepHead(getCurrentHead(scene.state), key, heads()),
  });
  room.append(drawing.canvas);
  frame.addEventListener("scroll", drawing.moved);
  return {
    element: element("div", { class: "heads-grid" }, frame),
    update(now) {
      const moved = !scene || !isSameHead(getCurrentHead(scene.state), getCurrentHead(now.state));
      scene = now;
      const end = boxOf([heads().length, Math.max(0, ...heads())]);
      Object.assign(room.style, { width: `${end.left}px`, height: `${end.top}px` });
      if (moved) reveal(frame, boxOf(getCurrentHead(now.state)));
      drawing.soon();
    },
  };
}
