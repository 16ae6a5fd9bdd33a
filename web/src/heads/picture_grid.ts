/** All heads of a trace as small pictures of their attention patterns. */

import type { Box } from "../geometry/box";
import type { HostContext } from "../host";
import { prepareSurface } from "../paint/canvas";
import { chooseScale, isSameScale, type ColourScale } from "../paint/colour";
import { createTileColours } from "../paint/tile_colours";
import { paintHatch } from "../paint/hatch";
import { paintLegend } from "../paint/legend";
import type { Surface, Theme } from "../paint/surface";
import { segments } from "../panels/controls";
import { element } from "../panels/dom";
import { getHeadNumber, getLayerNumber, type Channel, type Layer, type Meta } from "../server/protocol";
import type { HeadId, State } from "../state";
import { countPictureKeys } from "../tiles/pictures";
import { TileImages } from "../tiles/tile_images";
import type { LoadedTile } from "../tiles/tile_store";
import { chooseSize, coarsenTile, SIZES } from "./grid_layout";
import { createHeadGrid } from "./head_grid";
import type { HeadLoader } from "./head_loader";
import { isFaded, type HeadsActions, type HeadsPart, type HeadsScene } from "./heads_scene";
import { includesHead } from "./scored_heads";

const LEGEND_HEIGHT = 48;

/** The heads of a trace, as far as they are loaded. */
export interface TraceScene extends HeadsScene {
  readonly meta: Meta;
  readonly catalog: HeadLoader;
}

export interface PictureGrid extends HeadsPart<TraceScene> {
  /** The first layer in view: its pictures are loaded first. */
  findFirstLayer(): number;
}

/** How the weights in a bin of a small picture are pooled. */
export function choosePooling({ channel }: State): Channel {
  return channel === "mean" ? "mean" : "max";
}

export function createPictureGrid(context: HostContext, actions: HeadsActions): PictureGrid {
  const legend = element("canvas", { class: "heads-scale", "aria-hidden": "true" });
  const images = new TileImages();
  /** Tiles with fewer bins, kept as long as the tiles that they are made of. */
  const coarseTiles = new WeakMap<LoadedTile, LoadedTile>();
  /** Set by the first update. */
  let scene!: TraceScene;
  let scale: ColourScale | null = null;
  let coloured: Meta | null = null;
  /** Null chooses the size that suits the width. */
  let chosenSize: number | null = null;

  /** The tile, or a coarser one that has no more bins than there are pixels. */
  const fitTile = (tile: LoadedTile, pixels: number): LoadedTile => {
    const bins = Math.max(tile.y, tile.columns);
    const [factor, kept] = [Math.ceil(bins / pixels), coarseTiles.get(tile)];
    if (factor <= 1) return tile;
    if (kept && Math.max(kept.y, kept.columns) === Math.ceil(bins / factor)) return kept;
    const coarse = coarsenTile(tile, factor);
    coarseTiles.set(tile, coarse);
    return coarse;
  };
  const countKeys = (tile: LoadedTile, _side: "row" | "column", row: number): number => {
    const layer = scene.meta.layers[tile.z];
    return layer ? countPictureKeys(layer, tile, row) : 1;
  };
  const paintPicture = (surface: Surface, theme: Theme, id: HeadId, box: Box): void => {
    const { context: pen } = surface;
    const { left, top, width, height } = box;
    const tile = scene.catalog.pictures[id[0]];
    pen.globalAlpha = isFaded(scene, id) ? 0.2 : 1;
    if (tile) {
      const fitted = fitTile(tile, Math.round(width * surface.scale));
      if (tile.hasMasked) paintHatch(surface, box, theme);
      const source = [0, id[1] * fitted.y, fitted.columns, fitted.y] as const;
      pen.drawImage(images.getImage(fitted), ...source, left, top, width, height);
    } else {
      pen.fillStyle = theme.panel;
      pen.fillRect(left, top, width, height);
    }
    pen.globalAlpha = 1;
    const shape = scene.meta.layers[id[0]];
    if (shape) paintPinMark(surface, theme, box, shape, scene.state);
    if (includesHead(scene.state.ablated, id)) paintCross(surface, box);
  };
  const paintScale = (width: number, theme: Theme, colours: ColourScale): void => {
    const surface = prepareSurface(legend, width, LEGEND_HEIGHT);
    const box = { left: 12, top: 4, width: width - 24, height: LEGEND_HEIGHT };
    const content = { scale: colours, channel: choosePooling(scene.state), stride: 0, dots: false, masked: true };
    if (surface) paintLegend(surface, box, theme, { ...content, marked: null, remarks: [] });
  };

  const grid = createHeadGrid<TraceScene>(context, actions, {
    label: "All heads as small pictures: layers down, heads across",
    countHeads: ({ meta }) => meta.layers.map((layer) => layer.heads),
    getCellSize(heads, frameWidth) {
      const size = chosenSize ?? chooseSize(heads, frameWidth);
      return { width: size, height: size };
    },
    getRowName: ({ meta }, layer) => `L${getLayerNumber(meta, layer)}`,
    getColumnName({ meta }, head) {
      const number = getHeadNumber(meta, 0, head);
      return meta.layers.every((_, layer) => getHeadNumber(meta, layer, head) === number) ? `H${number}` : "";
    },
    beginFrame(surface, theme, { state, meta }) {
      // The largest of many weights is never small, so the range of a short text suits it.
      const wanted = chooseScale(state, 1, 0);
      if (!isSameScale(scale, wanted) || coloured !== meta) images.setColours(createTileColours((scale = wanted), countKeys));
      coloured = meta;
      surface.context.imageSmoothingEnabled = false;
      paintScale(surface.width, theme, wanted);
    },
    paintCell: paintPicture,
    getOutline: (theme, isCurrent) => ({
      colour: isCurrent ? theme.accent : theme.ink,
      width: isCurrent ? 3 : 2,
      margin: 1.5,
    }),
  });
  const sizes = segments(
    "Size of the pictures",
    SIZES.map((size, index) => [String(size), ["small", "medium", "large"][index] ?? ""] as const),
    (size) => {
      chosenSize = Number(size);
      part.update(scene);
    },
  );
  const part: PictureGrid = {
    element: element("div", { class: "heads-grid" }, grid.frame, legend),
    controls: sizes.element,
    findFirstLayer: grid.findFirstLayer,
    update(newScene) {
      scene = newScene;
      grid.update(scene);
      sizes.update(String(grid.getCellSize().width));
    },
  };
  return part;
}

/** The pinned row, column or pair, where it is in the picture. */
function paintPinMark({ context }: Surface, theme: Theme, { left, top, width, height }: Box, { queries, keys }: Layer, { pinQuery, pinKey }: State): void {
  const [x, y] = [pinKey === null ? null : left + ((pinKey + 0.5) / keys) * width, pinQuery === null ? null : top + ((pinQuery + 0.5) / queries) * height];
  const stroke = (colour: string, draw: () => void): void => {
    for (const [ink, thickness] of [["#ffffff", 3], [colour, 1.5]] as const) {
      context.strokeStyle = ink;
      context.lineWidth = thickness;
      context.beginPath();
      draw();
      context.stroke();
    }
  };
  const line = (x0: number, y0: number, x1: number, y1: number) => (): void => {
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
  };
  if (x !== null && y !== null) stroke(theme.key, () => context.rect(x - 3, y - 3, 6, 6));
  else if (y !== null) stroke(theme.query, line(left, y, left + width, y));
  else if (x !== null) stroke(theme.key, line(x, top, x, top + height));
}

/** Cross out an ablated head, in black on white, which is visible on any colours. */
function paintCross({ context }: Surface, { left, top, width, height }: Box): void {
  for (const [colour, thickness] of [["#ffffff", 5], ["#000000", 2]] as const) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.beginPath();
    context.moveTo(left, top);
    context.lineTo(left + width, top + height);
    context.moveTo(left + width, top);
    context.lineTo(left, top + height);
    context.stroke();
  }
}
