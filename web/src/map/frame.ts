// One frame of the map: the heatmap on its canvas, everything that is written or points on the canvas above it.
//
// In: a scene, plain values. Out: pixels on the surfaces given. The screen and an export paint the same scene.
import { chooseLabels, chooseNumbers, EVERY_TOKEN_FROM, type Axis } from "./axis_labels";
import type { Scale } from "../paint/colour";
import type { Drawing, HeadData, Mode, Reading } from "./head_data";
import type { Layout } from "./layout";
import { paintCorner, paintLeftAxis, paintTag, paintTopAxis } from "../paint/axes";
import { paintLegend } from "../paint/legend";
import { matrixBox, paintHiddenSink, paintMap, paintSpikes } from "../paint/map";
import { paintLeftStrip, paintTopStrip } from "../paint/marginals";
import { paintCrosshair, paintPins, paintReadout, paintRubber, paintValues, VALUES_FROM, type CellValue } from "../paint/marks";
import { minimapShown, paintMinimap } from "../paint/minimap";
import { paintBuilding, paintWatermark } from "../paint/notes";
import { counted, percent, plain } from "../numbers";
import { within, type Box, type Surface, type Theme } from "../paint/surface";
import type { Pictures } from "./pictures";
import type { Side } from "../server/protocol";
import { visible } from "../paint/token_text";
import { visibleRange, type Viewport } from "./viewport";

export interface Scene {
  layout: Layout;
  theme: Theme;
  view: Viewport;
  data: HeadData;
  drawing: Drawing;
  pictures: Pictures;
  scale: Scale;
  mode: Mode;
  hideSink: boolean;
  pinQuery: number | null;
  pinKey: number | null;
  /** The pair under the pointer and where the pointer is. */
  hover: { query: number; key: number; x: number; y: number } | null;
  rubber: Box | null;
  text(side: Side, position: number): string | undefined;
}

/** The heatmap alone, on a surface as large as the plot. */
export function paintHeat(surface: Surface, scene: Scene): void {
  const { layout, view, theme, drawing, pictures } = scene;
  const plot = { left: 0, top: 0, width: layout.plot.width, height: layout.plot.height };
  paintMap(surface, plot, theme, { view, pieces: drawing.pieces, picture: (tile) => pictures.of(tile) });
  // The bin that holds the sink shows little else: it is hidden whole.
  if (scene.hideSink) paintHiddenSink(surface, plot, theme, view, drawing.stride);
}

/** Everything around and above the heatmap. */
export function paintOverlay(surface: Surface, scene: Scene): void {
  const { layout, view, theme, data, drawing } = scene;
  surface.context.clearRect(0, 0, surface.width, surface.height);
  paintAxes(surface, scene);
  paintTopStrip(surface, layout.topStrip, theme, view, data.strip("received", view));
  paintLeftStrip(surface, layout.leftStrip, theme, view, data.strip("entropy", view));
  const dots = scene.mode === "both" && drawing.stride > 1;
  const matrix = matrixBox(layout.plot, view, surface.scale);
  within(surface, matrix, () => {
    if (dots) paintSpikes(surface, layout.plot, view, data.spikes(drawing.pieces));
    if (view.zoom >= VALUES_FROM) paintValues(surface, layout.plot, view, scene.scale, cellValues(scene));
    if (data.meta?.note) paintWatermark(surface, matrix, data.meta.note);
  });
  if (drawing.pieces.some((piece) => piece.tile?.partial)) paintBuilding(surface, layout.plot, theme, data.progress);
  if (minimapShown(view)) paintWhole(surface, scene);
  paintPins(surface, layout.plot, theme, view, scene.pinQuery, scene.pinKey);
  if (scene.hover) paintCrosshair(surface, layout.plot, theme, view, scene.hover.query, scene.hover.key);
  paintTags(surface, scene);
  paintLegendOf(surface, scene, matrix, dots);
  if (scene.hover) paintReadout(surface, layout.plot, theme, scene.hover, readoutOf(scene, scene.hover));
  if (scene.rubber) paintRubber(surface, theme, scene.rubber);
}

function paintAxes(surface: Surface, scene: Scene): void {
  const { layout, view, theme, data } = scene;
  const name = (side: Side) => (position: number): string | undefined => {
    const found = scene.text(side, position);
    return found === undefined ? undefined : visible(found);
  };
  // Slanted lines need more of their axis than level ones.
  const spacing = (least: number): number => (view.zoom >= EVERY_TOKEN_FROM ? view.zoom : least);
  const rows: Axis = { first: view.query, zoom: view.zoom, pixels: layout.plot.height, length: view.queries };
  const columns: Axis = { first: view.key, zoom: view.zoom, pixels: layout.plot.width, length: view.keys };
  paintLeftAxis(surface, layout.leftNames, layout.leftNumbers, theme, {
    labels: chooseLabels(rows, data.sections("query"), name("query"), spacing(14)),
    numbers: chooseNumbers(rows, 40),
    first: view.query,
    zoom: view.zoom,
    tagged: [scene.pinQuery, scene.hover?.query],
  });
  paintTopAxis(surface, layout.topNames, layout.topNumbers, theme, {
    labels: chooseLabels(columns, data.sections("key"), name("key"), spacing(18)),
    numbers: chooseNumbers(columns, 56),
    first: view.key,
    zoom: view.zoom,
    // The tags of keys stand below their names.
    tagged: [],
  });
  paintCorner(surface, layout.corner, theme);
}

/** Full names of the pinned and the hovered row and column, over the axis. */
function paintTags(surface: Surface, scene: Scene): void {
  const { layout, view, theme } = scene;
  const tag = (side: Side, position: number | null | undefined, colour: string): void => {
    if (position === null || position === undefined) return;
    const found = scene.text(side, position);
    const words = counted(position) + (found === undefined ? "" : ` ${visible(found)}`);
    const { plot, leftStrip, topStrip } = layout;
    if (side === "query") {
      const y = plot.top + (position + 0.5 - view.query) * view.zoom;
      if (y >= plot.top && y <= plot.top + plot.height) paintTag(surface, theme, words, { x: leftStrip.left - 2, y }, "left", colour);
    } else {
      const x = plot.left + (position + 0.5 - view.key) * view.zoom;
      if (x >= plot.left && x <= plot.left + plot.width) paintTag(surface, theme, words, { x, y: topStrip.top }, "top", colour);
    }
  };
  tag("query", scene.pinQuery, theme.query);
  tag("key", scene.pinKey, theme.key);
  tag("query", scene.hover?.query, theme.ink);
  tag("key", scene.hover?.key, theme.ink);
}

function paintWhole(surface: Surface, scene: Scene): void {
  const { layout, view, theme, data, pictures } = scene;
  const tile = data.whole(scene.mode);
  const stride = data.plan.stride(0);
  const whole = tile && { picture: pictures.of(tile), queries: tile.rows * stride, keys: tile.columns * stride };
  paintMinimap(surface, layout.minimap, theme, view, whole);
}

function paintLegendOf(surface: Surface, scene: Scene, matrix: Box, dots: boolean): void {
  const { layout, view, theme, data, drawing, hover } = scene;
  const share = scene.hideSink ? data.sinkShare(view) : null;
  const sink = share === null ? ["first token hidden"] : [`first token hidden: it takes ${percent(share)} of these rows`, `first token hidden: ${percent(share)}`];
  const strips = "above: what a key receives, left: entropy of a query";
  // Right under the matrix, also where that ends before the plot does.
  const top = Math.min(layout.legend.top, matrix.top + matrix.height + 4);
  paintLegend(surface, { ...layout.legend, top }, theme, {
    scale: scene.scale,
    stride: drawing.stride,
    channel: drawing.channel,
    dots,
    masked: data.masking.causal || drawing.pieces.some((piece) => piece.state === "masked" || (piece.tile?.holes ?? false)),
    marked: hover ? (data.reading(hover.query, hover.key, view, scene.mode)?.value ?? null) : null,
    remarks: [...(data.meta?.note ? [["without its mask"]] : []), ...(scene.hideSink ? [sink] : []), ...(layout.legend.width < 700 ? [] : [[strips]])],
  });
}

function said(reading: Reading | undefined): string {
  if (!reading) return "loading";
  if (reading.value === null) return "masked";
  return (reading.exact ? "" : "~") + plain(reading.value);
}

function readoutOf(scene: Scene, hover: { query: number; key: number }): string {
  const { data, view, drawing, mode } = scene;
  const reading = data.reading(hover.query, hover.key, view, mode);
  if (drawing.stride === 1) return said(reading);
  const bin = (channel: "mean" | "max"): string => `${channel} ${said(data.binReading(hover.query, hover.key, view, channel))}`;
  const bins = mode === "both" ? `${bin("mean")}, ${bin("max")}` : bin(mode);
  if (reading?.exact && reading.value === null && data.binReading(hover.query, hover.key, view, drawing.channel)?.value === null) return "masked";
  return `${reading?.exact ? `this pair ${said(reading)}; ` : ""}${drawing.stride}\u00d7${drawing.stride}: ${bins}`;
}

function* cellValues(scene: Scene): Generator<CellValue> {
  const { data, view } = scene;
  const range = visibleRange(view);
  for (let query = range.query[0]; query < range.query[1]; query++) {
    for (let key = range.key[0]; key < range.key[1]; key++) {
      if (scene.hideSink && key === 0) continue;
      const reading = data.reading(query, key, view, scene.mode);
      if (reading && reading.value !== null) yield { query, key, value: reading.value, exact: reading.exact };
    }
  }
}
