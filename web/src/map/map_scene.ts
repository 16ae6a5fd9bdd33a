// Paints one frame of the map: the heatmap on one canvas, labels and marks on the canvas above it.
//
// In: a scene, plain values. Out: pixels on the surfaces given. The screen and an export paint the same scene.
import { chooseLabels, chooseNumbers, EVERY_TOKEN_FROM_ZOOM, type AxisLabel, type AxisView } from "../geometry/axis_labels";
import type { ColourScale } from "../paint/colour";
import type { LayoutParts, MapLayout } from "./map_layout";
import type { EvictedKeys } from "../server/evicted_keys";
import { paintEvictedColumns } from "../paint/evicted_columns";
import type { ChannelMode, Eviction } from "../state";
import type { MapData, TileDrawing } from "./map_data";
import { paintCorner, paintLeftAxis, paintNames, paintTag, paintTopAxis, paintUnmatched, placeTag, type Tag, type UnmatchedTokens } from "../paint/axes";
import { paintLegend } from "../paint/legend";
import { computeMatrixBox, paintBins, paintHiddenSink, paintSpikes, paintTiles, type Preview } from "../paint/heatmap";
import { paintLeftStrip, paintTopStrip } from "../paint/marginals";
import { paintCrosshair, paintPins, paintReadout, paintSelectionBox, paintValues, VALUES_FROM_ZOOM, type CellValue } from "../paint/overlays";
import { isMinimapShown, paintMinimap } from "../paint/minimap";
import { paintBuilding, paintNote, paintWatermark } from "../paint/watermark";
import { formatCount, formatPercent } from "../format_numbers";
import type { Box } from "../geometry/box";
import { clipTo, type Surface, type Theme } from "../paint/surface";
import type { TileImages } from "../tiles/tile_images";
import type { Side } from "../server/protocol";
import type { LoadedTile } from "../tiles/tile_store";
import { formatToken, isolateDirection } from "../paint/token_text";
import { getVisibleRange, type Viewport } from "../geometry/viewport";

/** What a map is called when two are compared, and which of its tokens the other text does not have. */
export interface ComparisonRole {
  readonly name: string;
  readonly unmatched: UnmatchedTokens;
}

export interface SceneParts extends LayoutParts {
  readonly tags: boolean;
  /** Of tokens and sections, and what rows and columns are. */
  readonly names: boolean;
}

export interface MapScene {
  layout: MapLayout;
  theme: Theme;
  view: Viewport;
  data: MapData;
  /** Null unless two maps are compared. */
  role: ComparisonRole | null;
  drawing: TileDrawing;
  images: TileImages;
  /** The whole matrix in few bins, under tiles that are not loaded. */
  preview: Preview | null;
  scale: ColourScale;
  mode: ChannelMode;
  hideSink: boolean;
  eviction: Eviction | null;
  evicted: EvictedKeys | null;
  pinQuery: number | null;
  pinKey: number | null;
  pinQueryEnd: number | null;
  pinKeyEnd: number | null;
  /** The pair under the pointer and where the pointer is. */
  hover: { query: number; key: number; x: number; y: number } | null;
  selectionBox: Box | null;
  /** The mask has no hatch, only the colour of the paper. */
  isMaskBlank: boolean;
  /** Leave out the minimap and other navigation aids. */
  isExport: boolean;
  /** What a figure may leave out. */
  parts: SceneParts;
  text(side: Side, position: number): string | undefined;
}

/** Paint everything on one surface. */
export function paintScene(surface: Surface, scene: MapScene): void {
  surface.context.fillStyle = scene.theme.paper;
  surface.context.fillRect(0, 0, surface.width, surface.height);
  paintHeatmap(surface, scene, scene.layout.plot);
  paintOverlay(surface, scene);
}

/** The heatmap alone. */
export function paintHeatmap(surface: Surface, scene: MapScene, plot: Box): void {
  const { view, theme, drawing, images, preview } = scene;
  const map = { view, preview, placements: drawing.placements, getImage: (tile: LoadedTile): CanvasImageSource => images.getImage(tile) };
  if (surface.hatch) paintBins(surface, plot, theme, map, drawing.stride);
  else paintTiles(surface, plot, theme, map);
  if (scene.evicted) paintEvictedColumns(surface, plot, theme, view, scene.evicted, drawing.stride);
  // The whole bin of the sink is hidden: it shows little else.
  if (scene.hideSink) paintHiddenSink(surface, plot, theme, view, drawing.stride, scene.data.pairDisplay?.mode === "split");
}

/** Everything around and above the heatmap. */
export function paintOverlay(surface: Surface, scene: MapScene): void {
  const { layout, view, theme, data, drawing } = scene;
  const tags = scene.parts.tags ? placeTags(surface, scene) : NO_TAGS;
  paintAxes(surface, scene, tags);
  if (scene.parts.strips) {
    paintTopStrip(surface, layout.topStrip, theme, view, data.getStrip("received", view));
    paintLeftStrip(surface, layout.leftStrip, theme, view, data.getStrip("entropy", view));
  }
  const matrix = computeMatrixBox(layout.plot, view, surface.scale);
  const split = data.pairDisplay?.mode === "split";
  if (split) paintNames(surface, matrix, theme, data.pairDisplay.names);
  clipTo(surface, matrix, () => {
    if (hasDots(scene)) paintSpikes(surface, layout.plot, view, data.getSpikes(drawing.placements, view.zoom));
    if (view.zoom >= VALUES_FROM_ZOOM && drawing.stride === 1) paintValues(surface, layout.plot, view, scene.scale, listCellValues(scene), (query) => data.countKeys(query));
    if (data.meta?.note) paintWatermark(surface, matrix, data.meta.note);
  });
  if (drawing.placements.some((placement) => placement.tile?.partial)) paintBuilding(surface, layout.plot, theme, data.progress);
  else if (drawing.isCoarse) paintNote(surface, layout.plot, theme, `this file holds ${drawing.stride}\u00d7${drawing.stride} pairs here, none finer`);
  if (!scene.isExport && isMinimapShown(view)) paintOverview(surface, scene);
  paintPins(surface, layout.plot, theme, view, {
    ...{ query: scene.pinQuery, queryEnd: scene.pinQueryEnd, key: scene.pinKey, keyEnd: scene.pinKeyEnd },
    isFolded: split,
  });
  if (scene.hover) paintCrosshair(surface, layout.plot, theme, view, scene.hover.query, scene.hover.key);
  for (const tag of [...tags.query, ...tags.key]) paintTag(surface, theme, tag);
  // Right under the matrix, also where that ends before the plot does.
  const top = Math.min(layout.legend.top, matrix.top + matrix.height + 4);
  if (scene.parts.legend) paintSceneLegend(surface, scene, { ...layout.legend, top });
  if (scene.hover) paintReadout(surface, layout.plot, theme, scene.hover, describeHover(scene, scene.hover));
  if (scene.selectionBox) paintSelectionBox(surface, theme, scene.selectionBox);
}

/** "Margaret gives 77% to Margaret", where the weight of the pair is known; then the numbers. */
function describeHover(scene: MapScene, { query, key }: { query: number; key: number }): string {
  const { data, view, mode } = scene;
  const numbers = data.describeCell(query, key, view, mode);
  const reading = data.pairDisplay ? undefined : data.getReading(query, key, view, mode);
  const [giver, taker] = [scene.text("query", query), scene.text("key", key)];
  if (!reading?.exact || reading.value === null || giver === undefined || taker === undefined) return numbers;
  const name = (text: string): string => isolateDirection(formatToken(text.trim() || text));
  return `${name(giver)} gives ${formatPercent(reading.value)} to ${name(taker)}\n${numbers}`;
}

function paintAxes(surface: Surface, scene: MapScene, tags: Tags): void {
  const { layout, view, theme, data } = scene;
  const getLabel = (side: Side) => (position: number): string | undefined => {
    const found = scene.text(side, position);
    return found === undefined ? undefined : formatToken(found);
  };
  // Slanted lines need more of their axis than level ones.
  const getSpacing = (least: number): number => (view.zoom >= EVERY_TOKEN_FROM_ZOOM ? view.zoom : least);
  const rows: AxisView = { first: view.query, zoom: view.zoom, pixels: layout.plot.height, length: view.queries };
  const columns: AxisView = { first: view.key, zoom: view.zoom, pixels: layout.plot.width, length: view.keys };
  const choose = (axis: AxisView, side: Side, least: number): AxisLabel[] =>
    scene.parts.names ? chooseLabels(axis, data.getSections(side), getLabel(side), getSpacing(least)) : [];
  if (scene.role) paintUnmatched(surface, layout, theme, view, scene.role.unmatched);
  paintLeftAxis(surface, layout.leftNames, layout.leftNumbers, theme, {
    labels: choose(rows, "query", 14),
    numbers: chooseNumbers(rows, 40),
    first: view.query,
    zoom: view.zoom,
    tags: tags.query.map(({ box }) => box),
  });
  paintTopAxis(surface, layout.topNames, layout.topNumbers, theme, {
    labels: choose(columns, "key", 18),
    numbers: chooseNumbers(columns, 56),
    first: view.key,
    zoom: view.zoom,
    tags: tags.key.map(({ box }) => box),
  });
  const split = data.pairDisplay?.mode === "split";
  const reads = split ? ["A below: row attends to column", "B above: column attends to row"] : ["row attends to column"];
  if (scene.parts.names) paintCorner(surface, layout.corner, theme, reads, scene.role?.name);
}

type Tags = Readonly<Record<Side, readonly Tag[]>>;

const NO_TAGS: Tags = { query: [], key: [] };

/** Full names of the pinned and the hovered row and column, over the axes. */
function placeTags(surface: Surface, scene: MapScene): Tags {
  const { layout, view, theme } = scene;
  const { plot, leftStrip, topStrip } = layout;
  const axes = {
    query: { left: 2, top: plot.top, width: leftStrip.left - 4, height: plot.height },
    key: { left: plot.left, top: 0, width: surface.width - plot.left - 2, height: topStrip.top },
  };
  const place = (side: Side, position: number | null | undefined, colour: string): Tag[] => {
    if (position === null || position === undefined) return [];
    const found = scene.text(side, position);
    const words = formatCount(position) + (found === undefined ? "" : ` ${formatToken(found)}`);
    const [first, start, length] = side === "query" ? [view.query, plot.top, plot.height] : [view.key, plot.left, plot.width];
    const at = (position + 0.5 - first) * view.zoom;
    return at < 0 || at > length ? [] : [placeTag(surface, words, start + at, axes[side], side === "query" ? "left" : "top", colour)];
  };
  return {
    query: [...place("query", scene.pinQuery, theme.query), ...place("query", scene.hover?.query, theme.ink)],
    key: [...place("key", scene.pinKey, theme.key), ...place("key", scene.hover?.key, theme.ink)],
  };
}

/** Dots mark what a mean hides. */
function hasDots({ mode, drawing }: MapScene): boolean {
  return mode === "both" && drawing.stride > 1;
}

function paintOverview(surface: Surface, scene: MapScene): void {
  const { layout, view, theme, data, images } = scene;
  const tile = data.getOverview(scene.mode);
  const stride = data.plan.getStride(0);
  const whole = tile && { picture: images.getImage(tile), queries: tile.rows * stride, keys: tile.columns * stride };
  paintMinimap(surface, layout.minimap, theme, view, whole);
}

/** The legend of a scene, in a box. */
export function paintSceneLegend(surface: Surface, scene: MapScene, box: Box): void {
  const { view, theme, data, drawing, hover } = scene;
  const share = scene.hideSink && !data.pairDisplay ? data.getSinkShare(view) : null;
  const sink = share === null ? ["first token hidden"] : [`first token hidden: it takes ${formatPercent(share)} of these rows`, `first token hidden: ${formatPercent(share)}`];
  const strips = `above: what a key receives, left: entropy of a query${data.pairDisplay ? ", of A" : ""}`;
  const marked = hover ? (data.getReading(hover.query, hover.key, view, scene.mode)?.value ?? NaN) : NaN;
  paintLegend(surface, box, theme, {
    scale: scene.scale,
    stride: drawing.stride,
    channel: drawing.channel,
    dots: hasDots(scene),
    masked: !scene.isMaskBlank && (data.masking.causal || drawing.placements.some((placement) => placement.state === "masked" || (placement.tile?.hasMasked ?? false))),
    marked: hover && !Number.isNaN(marked) ? { weight: marked, keys: data.countKeys(hover.query) } : null,
    remarks: [
      ...(data.pairDisplay ? [[`A ${data.pairDisplay.names[0]}, B ${data.pairDisplay.names[1]}`]] : []),
      ...(data.meta?.note ? [["without its mask"]] : []),
      ...(scene.hideSink ? [sink] : []),
      ...(scene.evicted && scene.eviction ? [describeEviction(scene.evicted.context, scene.eviction)] : []),
      ...(box.width < 700 || !scene.parts.strips ? [] : [[strips]]),
    ],
  });
}

function describeEviction(context: number, { by, keep }: Eviction): string[] {
  return [`hatched columns: evicted after ${formatCount(context)} tokens, ${keep}% kept by ${by}`, "hatched columns: evicted"];
}

function* listCellValues(scene: MapScene): Generator<CellValue> {
  const { data, view } = scene;
  const range = getVisibleRange(view);
  for (let query = range.query[0]; query < range.query[1]; query++) {
    for (let key = range.key[0]; key < range.key[1]; key++) {
      if (scene.hideSink && key === 0) continue;
      const reading = data.getReading(query, key, view, scene.mode);
      if (reading && reading.value !== null && !Number.isNaN(reading.value)) yield { query, key, value: reading.value, exact: reading.exact };
    }
  }
}
