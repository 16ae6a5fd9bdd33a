/** All heads as small pictures on one canvas, layers down and heads across; only those in view are painted. */

import { prepareSurface } from "../panels/chart";
import { segments } from "../panels/controls";
import { element } from "../panels/dom";
import type { HostContext } from "../host";
import { TileImages } from "../tiles/tile_images";
import type { LoadedTile } from "../tiles/tile_store";
import { createLookup, isSameScale, type ColourScale } from "../paint/colour";
import { paintHatch } from "../paint/hatch";
import { paintLegend } from "../paint/legend";
import { snapToPixel, type Box, type Surface, type Theme } from "../paint/surface";
import { withRange, type HeadId } from "../state";
import { createHeadCanvas } from "./head_canvas";
import { getCurrentHead, isFaded, choosePooling, type HeadsPart, type HeadsActions, type HeadsScene } from "./heads_view";
import { includesHead, getHeadName, isSameHead } from "./scored_heads";
import { getCellBox, coarsenTile, getExtent, findHeadAt, LEFT, SIZES, chooseSize, stepHead, TOP } from "./grid_layout";
import { paintRim, reveal, type Rim } from "./grid_labels";

/** CSS pixels for the colours and what they mean. */
const LEGEND = 48;

export interface Grid extends HeadsPart {
  /** The first layer in view: its picture is wanted first. */
  first(): number;
}

export function createGrid(around: HostContext, actions: HeadsActions): Grid {
  const room = element("div", { class: "heads-room" });
  const frame = element("div", { class: "heads-frame" }, room);
  const legend = element("canvas", { class: "heads-scale", "aria-hidden": "true" });
  const pictures = new TileImages();
  /** Pictures with fewer bins, for as long as those they are made of are held. */
  const coarse = new WeakMap<LoadedTile, LoadedTile>();
  /** There before anything is painted. */
  let scene!: HeadsScene;
  let scale: ColourScale | null = null;
  /** Null: what suits the width. */
  let chosen: number | null = null;

  const heads = (): readonly number[] => scene.meta.layers.map((layer) => layer.heads);
  const size = (): number => chosen ?? chooseSize(heads(), frame.clientWidth);
  /** Where a picture is on the canvas. */
  const seen = (place: HeadId): Box => {
    const box = getCellBox(place, size());
    return { ...box, left: box.left - frame.scrollLeft, top: box.top - frame.scrollTop };
  };

  const paint = (surface: Surface, theme: Theme, hovered: HeadId | null): void => {
    const { state } = scene;
    // The largest of many weights is never small: the range of a short text suits it.
    const wanted = withRange(state, 0);
    if (!isSameScale(scale, wanted)) pictures.setLookup(createLookup((scale = wanted)));
    surface.context.imageSmoothingEnabled = false;
    for (const [layer, count] of heads().entries()) {
      const { top, height } = seen([layer, 0]);
      if (top + height < TOP || top > surface.height) continue;
      for (let head = 0; head < count; head++) paintHead(surface, theme, [layer, head], hovered);
    }
    paintRim(surface, theme, rim(), getCurrentHead(state));
    const foot = prepareSurface(legend, surface.width, LEGEND);
    const says = { scale: wanted, channel: choosePooling(state), stride: 0, dots: false, masked: true };
    const box = { left: 12, top: 4, width: surface.width - 24, height: LEGEND };
    if (foot) paintLegend(foot, box, theme, { ...says, marked: null, remarks: [] });
  };
  const paintHead = (surface: Surface, theme: Theme, place: HeadId, hovered: HeadId | null): void => {
    const { context } = surface;
    const { state, roster } = scene;
    const { left, top, width, height } = seen(place);
    const box = { left: snapToPixel(left, surface.scale), top: snapToPixel(top, surface.scale), width, height };
    const tile = roster.pictures[place[0]];
    context.globalAlpha = isFaded(scene, place) ? 0.2 : 1;
    if (tile) {
      const fine = fitting(tile, Math.round(width * surface.scale));
      if (tile.hasMasked) paintHatch(surface, box, theme);
      const from = [0, place[1] * fine.y, fine.columns, fine.y] as const;
      context.drawImage(pictures.getImage(fine), ...from, box.left, box.top, width, height);
    } else {
      context.fillStyle = theme.panel;
      context.fillRect(box.left, box.top, width, height);
    }
    context.globalAlpha = 1;
    if (includesHead(state.ablated, place)) paintCross(surface, box);
    const current = isSameHead(place, getCurrentHead(state));
    if (!current && !isSameHead(place, hovered)) return;
    context.strokeStyle = current ? theme.accent : theme.ink;
    context.lineWidth = current ? 3 : 2;
    context.strokeRect(box.left - 1.5, box.top - 1.5, width + 3, height + 3);
  };
  /** A picture with no more bins than there are pixels. */
  const fitting = (tile: LoadedTile, pixels: number): LoadedTile => {
    const most = Math.max(tile.y, tile.columns);
    const [factor, held] = [Math.ceil(most / pixels), coarse.get(tile)];
    if (factor <= 1) return tile;
    if (held && Math.max(held.y, held.columns) === Math.ceil(most / factor)) return held;
    const made = coarsenTile(tile, factor);
    coarse.set(tile, made);
    return made;
  };
  const rim = (): Rim => ({
    layers: heads().map((_, layer) => seen([layer, 0]).top + size() / 2),
    columns: Array.from({ length: Math.max(0, ...heads()) }, (_, head) => {
      const name = getHeadName(scene.meta, [0, head]).slice(2);
      // Layers that recorded other heads have no name in common for a column.
      const shared = scene.meta.layers.every((_, layer) => getHeadName(scene.meta, [layer, head]).endsWith(name));
      return [shared ? name : "", seen([0, head]).left + size() / 2];
    }),
  });

  const drawing = createHeadCanvas(frame, "All heads as small pictures: layers down, heads across", around, actions, {
    paint,
    getBox: seen,
    findHead: (x, y) => (x < LEFT || y < TOP ? null : findHeadAt(x + frame.scrollLeft, y + frame.scrollTop, heads(), size())),
    findNextHead: (key) => stepHead(getCurrentHead(scene.state), key, heads()),
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
    first: () => (scene ? (findHeadAt(LEFT, TOP + frame.scrollTop, heads(), size())?.[0] ?? 0) : 0),
    update(now) {
      const moved = !scene || !isSameHead(getCurrentHead(scene.state), getCurrentHead(now.state));
      scene = now;
      const { width, height } = getExtent(heads(), size());
      Object.assign(room.style, { width: `${width}px`, height: `${height}px` });
      sizes.update(String(size()));
      if (moved) reveal(frame, getCellBox(getCurrentHead(now.state), size()));
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
