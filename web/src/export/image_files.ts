// The map as a file: the same painters on a larger canvas, or on one that keeps shapes; a few lines of words below it.
import { createSvgFile, createSvgSurface } from "./svg_context";
import type { MapView } from "../map/map_view";
import { fonts, type Surface, type Theme } from "../paint/surface";
import { wrapText } from "../paint/canvas_text";

const LINE = 15;
const MARGIN = 10;
const font = `11px ${fonts.text}`;
/** Of a canvas: for more than that browsers give no memory. */
const MAX_PIXELS = 2 ** 27;
const MAX_SIDE = 16_384;
/** Thin lines of a drawing are half a pixel. */
const VECTOR_SCALE = 2;

export interface ImageOptions {
  /** One, or two side by side. */
  maps: readonly MapView[];
  theme: Theme;
  /** Stands below the map. */
  caption: string;
}

/** A picture in CSS pixels, and the lines below it. */
interface ImageLayout {
  width: number;
  height: number;
  lines: string[];
}

function computeLayout({ maps, caption }: ImageOptions): ImageLayout {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  const width = maps.reduce((sum, { element }) => sum + element.clientWidth, 0);
  const height = Math.max(...maps.map(({ element }) => element.clientHeight));
  const lines = pen ? wrapText(pen, font, caption, width - 2 * MARGIN) : [caption];
  return { width, height: height + LINE * lines.length + 2 * MARGIN, lines };
}

/** Pixels of the picture at a scale; null where no browser could make it. */
export function computePixelSize(order: ImageOptions, scale: number): [width: number, height: number] | null {
  const { width, height } = computeLayout(order);
  const size: [number, number] = [Math.round(width * scale), Math.round(height * scale)];
  return width > 0 && size[0] * size[1] <= MAX_PIXELS && Math.max(...size) <= MAX_SIDE ? size : null;
}

function paint(surface: Surface, { maps, theme }: ImageOptions, { lines }: ImageLayout): void {
  const { context, width, height } = surface;
  const below = height - LINE * lines.length - 2 * MARGIN;
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, width, height);
  context.save();
  for (const map of maps) {
    const { clientWidth, clientHeight } = map.element;
    map.paintOn({ ...surface, width: clientWidth, height: clientHeight }, theme);
    context.translate(clientWidth, 0);
  }
  context.restore();
  context.font = font;
  context.fillStyle = theme.muted;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  lines.forEach((line, index) => context.fillText(line, MARGIN, below + MARGIN + LINE * (index + 0.75)));
}

export async function createPng(order: ImageOptions, scale: number): Promise<Blob> {
  const size = computePixelSize(order, scale);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = size ?? [0, 0];
  const context = canvas.getContext("2d");
  if (!size || !context) throw new Error("This picture is larger than a browser can make it.");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  paint({ context, width: size[0] / scale, height: size[1] / scale, scale }, order, computeLayout(order));
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (!blob) throw new Error("This browser had no memory for the picture: choose a smaller one.");
  return blob;
}

export function createSvg(order: ImageOptions): Blob {
  const sheet = computeLayout(order);
  const surface = createSvgSurface(sheet.width, sheet.height, VECTOR_SCALE);
  paint(surface, order, sheet);
  return createSvgFile(surface.element);
}
