// The heatmap: placements of tiles, each from a whole device pixel to the next placement's first. Nothing is ever smoothed.
import type { TilePlacement } from "../tiles/tile_cover";
import { TILE_SIZE } from "../geometry/zoom_plan";
import type { Spike } from "../tiles/spikes";
import type { LoadedTile } from "../tiles/tile_store";
import { tokenToPixel, type Viewport } from "../geometry/viewport";
import { paintHatch } from "./hatch";
import type { Box } from "../geometry/box";
import { clipTo, fonts, type Surface, type Theme } from "./surface";

/** A picture of the whole matrix. */
export interface Preview {
  image: CanvasImageSource;
  rows: number;
  columns: number;
}

export interface HeatmapContent {
  view: Viewport;
  preview: Preview | null;
  placements: readonly TilePlacement[];
  /** The coloured picture of a tile. */
  getImage(tile: LoadedTile): CanvasImageSource;
}

/** The matrix inside the plot, cut to the plot. */
export function computeMatrixBox(plot: Box, view: Viewport, scale: number): Box {
  const left = Math.max(0, tokenToPixel(0, view.key, view.zoom, scale));
  const top = Math.max(0, tokenToPixel(0, view.query, view.zoom, scale));
  const right = Math.min(plot.width, tokenToPixel(view.keys, view.key, view.zoom, scale));
  const bottom = Math.min(plot.height, tokenToPixel(view.queries, view.query, view.zoom, scale));
  return { left: plot.left + left, top: plot.top + top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
}

function getPlacementBox(placement: TilePlacement, plot: Box, view: Viewport, scale: number): Box {
  const left = tokenToPixel(placement.key, view.key, view.zoom, scale);
  const top = tokenToPixel(placement.query, view.query, view.zoom, scale);
  return {
    left: plot.left + left,
    top: plot.top + top,
    width: tokenToPixel(placement.keyEnd, view.key, view.zoom, scale) - left,
    height: tokenToPixel(placement.queryEnd, view.query, view.zoom, scale) - top,
  };
}

export function paintTiles(surface: Surface, plot: Box, theme: Theme, map: HeatmapContent): void {
  const { context, scale } = surface;
  const matrix = computeMatrixBox(plot, map.view, scale);
  context.fillStyle = theme.paper;
  context.fillRect(plot.left, plot.top, plot.width, plot.height);
  clipTo(surface, matrix, () => {
    context.imageSmoothingEnabled = false;
    if (map.preview && map.placements.some(({ state }) => state === "missing")) paintPreview(surface, plot, theme, map.view, map.preview);
    for (const placement of map.placements) paintPlacement(surface, getPlacementBox(placement, plot, map.view, scale), matrix, theme, map, placement);
  });
}

/** The same with a pixel for each bin, stretched as one picture over the hatch: nothing of it is rounded to pixels of a screen. */
export function paintBins(surface: Surface, plot: Box, theme: Theme, map: HeatmapContent, stride: number): void {
  const { context, scale } = surface;
  const { view } = map;
  const findFirstBin = (at: number): number => Math.floor(at / stride);
  const findEndBin = (at: number, pixels: number, length: number): number => Math.ceil(Math.min(length, at + pixels / view.zoom) / stride);
  const [top, left] = [findFirstBin(view.query), findFirstBin(view.key)];
  const width = findEndBin(view.key, view.width, view.keys) - left;
  const height = findEndBin(view.query, view.height, view.queries) - top;
  const bins = new OffscreenCanvas(Math.max(1, width), Math.max(1, height));
  const pen = bins.getContext("2d");
  if (!pen) return;
  // Bins are whole here, also the last one that the end of the matrix cuts off. What is hidden stays clear.
  const whole = { queries: Math.ceil(view.queries / stride) * stride, keys: Math.ceil(view.keys / stride) * stride };
  const seen = { ...whole, width, height, query: top * stride, key: left * stride, zoom: 1 / stride };
  const clear = { ...theme, paper: "transparent", hatch: "transparent", hatchGround: "transparent" };
  paintTiles({ context: pen, width, height, scale: 1 }, { left: 0, top: 0, width, height }, clear, { ...map, view: seen });
  const matrix = computeMatrixBox(plot, view, scale);
  clipTo(surface, matrix, () => {
    paintHatch(surface, matrix, theme);
    const side = stride * view.zoom;
    context.drawImage(bins, plot.left + left * side - view.key * view.zoom, plot.top + top * side - view.query * view.zoom, width * side, height * side);
  });
}

function paintPreview(surface: Surface, plot: Box, theme: Theme, { query, key, queries, keys, zoom }: Viewport, { image, rows, columns }: Preview): void {
  const { context, scale } = surface;
  const [left, top] = [tokenToPixel(0, key, zoom, scale), tokenToPixel(0, query, zoom, scale)];
  const box = { left: plot.left + left, top: plot.top + top, width: tokenToPixel(keys, key, zoom, scale) - left, height: tokenToPixel(queries, query, zoom, scale) - top };
  paintHatch(surface, computeMatrixBox(plot, { query, key, queries, keys, zoom, width: plot.width, height: plot.height }, scale), theme);
  context.drawImage(image, 0, 0, columns, rows, box.left, box.top, box.width, box.height);
}

function paintPlacement(surface: Surface, box: Box, matrix: Box, theme: Theme, map: HeatmapContent, placement: TilePlacement): void {
  const { context } = surface;
  const { tile, stride, address } = placement;
  if (!tile) {
    if (placement.state === "masked") paintHatch(surface, box, theme);
    else if (placement.state === "failed" || !map.preview) paintMessage(surface, box, matrix, theme, placement.state === "failed" ? "not loaded: no answer" : "loading");
    return;
  }
  if (tile.hasMasked) paintHatch(surface, box, theme);
  const left = placement.key / stride - address.x * TILE_SIZE;
  const top = placement.query / stride - address.y * TILE_SIZE;
  const width = (placement.keyEnd - placement.key) / stride;
  const height = (placement.queryEnd - placement.query) / stride;
  if (width <= 0 || height <= 0) return;
  context.drawImage(map.getImage(tile), left, top, width, height, box.left, box.top, box.width, box.height);
}

function paintMessage(surface: Surface, box: Box, matrix: Box, theme: Theme, words: string): void {
  const { context } = surface;
  context.fillStyle = theme.panel;
  context.fillRect(box.left, box.top, box.width, box.height);
  context.fillStyle = theme.muted;
  context.font = `12px ${fonts.text}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const findMiddle = (start: number, length: number, from: number, size: number): number =>
    (Math.max(start, from) + Math.min(start + length, from + size)) / 2;
  context.fillText(words, findMiddle(box.left, box.width, matrix.left, matrix.width), findMiddle(box.top, box.height, matrix.top, matrix.height));
}

/** Dots on bins whose average hides a strong link; white in a dark ring, to be seen on every colour. */
export function paintSpikes(surface: Surface, plot: Box, view: Viewport, tiles: readonly { placement: TilePlacement; spikes: readonly Spike[] }[]): void {
  const { context } = surface;
  // However many there are, a frame has time for so many.
  const most = Math.max(256, Math.floor(12_000 / Math.max(1, tiles.length)));
  context.beginPath();
  for (const { placement, spikes } of tiles) {
    const { stride, address } = placement;
    for (const spike of spikes.slice(0, most)) {
      const x = ((address.x * TILE_SIZE + spike.column + 0.5) * stride - view.key) * view.zoom;
      const y = ((address.y * TILE_SIZE + spike.row + 0.5) * stride - view.query) * view.zoom;
      if (x < 0 || y < 0 || x > plot.width || y > plot.height) continue;
      context.rect(plot.left + x - 1.5, plot.top + y - 1.5, 3, 3);
    }
  }
  context.strokeStyle = "#000000";
  context.lineWidth = 2;
  context.stroke();
  context.fillStyle = "#ffffff";
  context.fill();
}

/** A column hidden on request: hatched like the mask and named, never drawn as zero. */
export function paintHiddenSink(surface: Surface, plot: Box, theme: Theme, view: Viewport, keys: number, folded = false): void {
  const { scale } = surface;
  const matrix = computeMatrixBox(plot, view, scale);
  const findExtent = (first: number, start: number, most: number): number =>
    Math.min(most, Math.max(tokenToPixel(keys, first, view.zoom, scale), first < keys ? 3 : 0) - start);
  const width = findExtent(view.key, matrix.left - plot.left, matrix.width);
  if (width > 0) paintHatch(surface, { ...matrix, width }, theme);
  // Over the diagonal the keys of the other head are rows.
  const height = folded ? findExtent(view.query, matrix.top - plot.top, matrix.height) : 0;
  if (height > 0) paintHatch(surface, { ...matrix, height }, theme);
}
