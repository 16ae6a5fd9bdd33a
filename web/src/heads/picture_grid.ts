/** All heads as small pictures on one canvas, layers down and heads across; only those in view are painted. */

import { surfaceOf } from "../panels/chart";
import { segments } from "../panels/controls";
import { element } from "../panels/dom";
import type { Surroundings } from "../host";
import { Pictures } from "../tiles/tile_images";
import type { HeldTile } from "../tiles/tile_store";
import { lookup, sameScale, type Scale } from "../paint/colour";
import { paintHatch } from "../paint/hatch";
import { paintLegend } from "../paint/legend";
import { snap, type Box, type Surface, type Theme } from "../paint/surface";
import { ranged, type HeadPlace } from "../state";
import { createDrawing } from "./head_canvas";
import { currentOf, isFaded, pooledBy, type Part, type PartActions, type Scene } from "./heads_view";
import { isAmong, nameOf, samePlace } from "./scored_heads";
import { boxOf, coarser, extentOf, headAt, LEFT, SIZES, sizeFor, stepped, TOP } from "./grid_layout";
import { paintRim, reveal, type Rim } from "./grid_labels";

/** CSS pixels for the colours and what they mean. */
const LEGEND = 48;

export interface Grid extends Part {
  /** The first layer in view: its picture is wanted first. */
  first(): number;
}

export function createGrid(around: Surroundings, actions: PartActions): Grid {
  const room = element("div", { class: "heads-room" });
  const frame = element("div", { class: "heads-frame" }, room);
  const legend = element("canvas", { class: "heads-scale", "aria-hidden": "true" });
  const pictures = new Pictures();
  /** Pictures with fewer bins, for as long as those they are made of are held. */
  const coarse = new WeakMap<HeldTile, HeldTile>();
  /** There before anything is painted. */
  let scene!: Scene;
  let scale: Scale | null = null;
  /** Null: what suits the width. */
  let chosen: number | null = null;

  const heads = (): readonly number[] => scene.meta.layers.map((layer) => layer.heads);
  const size = (): number => chosen ?? sizeFor(heads(), frame.clientWidth);
  /** Where a picture is on the canvas. */
  const seen = (place: HeadPlace): Box => {
    const box = boxOf(place, size());
    return { ...box, left: box.left - frame.scrollLeft, top: box.top - frame.scrollTop };
  };

  const paint = (surface: Surface, theme: Theme, hovered: HeadPlace | null): void => {
    const { state } = scene;
    // The largest of many weights is never small: the range of a short text suits it.
    const wanted = ranged(state, 0);
    if (!sameScale(scale, wanted)) pictures.setLookup(lookup((scale = wanted)));
    surface.context.imageSmoothingEnabled = false;
    for (const [layer, count] of heads().entries()) {
      const { top, height } = seen([layer, 0]);
      if (top + height < TOP || top > surface.height) continue;
      for (let head = 0; head < count; head++) paintHead(surface, theme, [layer, head], hovered);
    }
    paintRim(surface, theme, rim(), currentOf(state));
    const foot = surfaceOf(legend, surface.width, LEGEND);
    const says = { scale: wanted, channel: pooledBy(state), stride: 0, dots: false, masked: true };
    const box = { left: 12, top: 4, width: surface.width - 24, height: LEGEND };
    if (foot) paintLegend(foot, box, theme, { ...says, marked: null, remarks: [] });
  };
  const paintHead = (surface: Surface, theme: Theme, place: HeadPlace, hovered: HeadPlace | null): void => {
    const { context } = surface;
    const { state, roster } = scene;
    const { left, top, width, height } = seen(place);
    const box = { left: snap(left, surface.scale), top: snap(top, surface.scale), width, height };
    const tile = roster.pictures[place[0]];
    context.globalAlpha = isFaded(scene, place) ? 0.2 : 1;
    if (tile) {
      const fine = fitting(tile, Math.round(width * surface.scale));
      if (tile.holes) paintHatch(surface, box, theme);
      const from = [0, place[1] * fine.y, fine.columns, fine.y] as const;
      context.drawImage(pictures.of(fine), ...from, box.left, box.top, width, height);
    } else {
      context.fillStyle = theme.panel;
      context.fillRect(box.left, box.top, width, height);
    }
    context.globalAlpha = 1;
    if (isAmong(state.ablated, place)) paintCross(surface, box);
    const current = samePlace(place, currentOf(state));
    if (!current && !samePlace(place, hovered)) return;
    context.strokeStyle = current ? theme.accent : theme.ink;
    context.lineWidth = current ? 3 : 2;
    context.strokeRect(box.left - 1.5, box.top - 1.5, width + 3, height + 3);
  };
  /** A picture with no more bins than there are pixels. */
  const fitting = (tile: HeldTile, pixels: number): HeldTile => {
    const most = Math.max(tile.y, tile.columns);
    const [factor, held] = [Math.ceil(most / pixels), coarse.get(tile)];
    if (factor <= 1) return tile;
    if (held && Math.max(held.y, held.columns) === Math.ceil(most / factor)) return held;
    const made = coarser(tile, factor);
    coarse.set(tile, made);
    return made;
  };
  const rim = (): Rim => ({
    layers: heads().map((_, layer) => seen([layer, 0]).top + size() / 2),
    columns: Array.from({ length: Math.max(0, ...heads()) }, (_, head) => {
      const name = nameOf(scene.meta, [0, head]).slice(2);
      // Layers that recorded other heads have no name in common for a column.
      const shared = scene.meta.layers.every((_, layer) => nameOf(scene.meta, [layer, head]).endsWith(name));
      return [shared ? name : "", seen([0, head]).left + size() / 2];
    }),
  });

  const drawing = createDrawing(frame, "All heads as small pictures: layers down, heads across", around, actions, {
    paint,
    box: seen,
    at: (x, y) => (x < LEFT || y < TOP ? null : headAt(x + frame.scrollLeft, y + frame.scrollTop, heads(), size())),
    step: (key) => stepped(currentOf(scene.state), key, heads()),
  });
  room.append(drawing.canvas);
  frame.addEventListener("scroll", drawing.moved);
  const sizes = segments(
    "Size of the pictures",
    SIZES.map((one, index) => [String(one), ["small", "medium", "large"][index] ?? ""] as const),
    (one) => {
      chosen = Number(one);
      grid.update(scene);
    },
  );
  const grid: Grid = {
    element: element("div", { class: "heads-grid" }, frame, legend),
    controls: sizes.element,
    first: () => (scene ? (headAt(LEFT, TOP + frame.scrollTop, heads(), size())?.[0] ?? 0) : 0),
    update(now) {
      const moved = !scene || !samePlace(currentOf(scene.state), currentOf(now.state));
      scene = now;
      const { width, height } = extentOf(heads(), size());
      Object.assign(room.style, { width: `${width}px`, height: `${height}px` });
      sizes.update(String(size()));
      if (moved) reveal(frame, boxOf(currentOf(now.state), size()));
      drawing.soon();
    },
  };
  return grid;
}

/** This head is silenced: crossed out, dark on pale, so that it is seen on any colours. */
function paintCross({ context }: Surface, { left, top, width, height }: Box): void {
  for (const [colour, thick] of [["#ffffff", 5], ["#000000", 2]] as const) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.beginPath();
    context.moveTo(left, top);
    context.lineTo(left + width, top + height);
    context.moveTo(left + width, top);
    context.lineTo(left, top + height);
    context.stroke();
  }
}
