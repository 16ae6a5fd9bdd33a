// The map as a file: the same painters on a larger canvas, or on one that keeps shapes; a few lines of words below it.
import type { Drawing } from "./figure";
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

/** Maps as they are on the screen, and the caption below them. */
export function createScreenDrawing({ maps, theme, caption }: ImageOptions): Drawing {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  const width = maps.reduce((sum, { element }) => sum + element.clientWidth, 0);
  const mapHeight = Math.max(...maps.map(({ element }) => element.clientHeight));
  const lines = pen ? wrapText(pen, font, caption, width - 2 * MARGIN) : [caption];
  const height = mapHeight + LINE * lines.length + 2 * MARGIN;
  const paint = (surface: Surface): void => {
    const { context } = surface;
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
    lines.forEach((line, index) => context.fillText(line, MARGIN, mapHeight + MARGIN + LINE * (index + 0.75)));
  };
  return { width, height, unit: 1, leastScale: 1, paint };
}

/** Pixels of a drawing at a scale; null where no browser could make it. */
export function computePixelSize({ width, height, unit }: Drawing, scale: number): [width: number, height: number] | null {
  const size: [number, number] = [Math.round(width * unit * scale), Math.round(height * unit * scale)];
  return width > 0 && size[0] * size[1] <= MAX_PIXELS && Math.max(...size) <= MAX_SIDE ? size : null;
}

export async function createPng(drawing: Drawing, scale: number): Promise<Blob> {
  const size = computePixelSize(drawing, scale);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = size ?? [0, 0];
  const context = canvas.getContext("2d");
  if (!size || !context) throw new Error("This picture is larger than a browser can make it.");
  const pixels = scale * drawing.unit;
  context.setTransform(pixels, 0, 0, pixels, 0, 0);
  drawing.paint({ context, width: size[0] / pixels, height: size[1] / pixels, scale: pixels });
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (!blob) throw new Error("This browser had no memory for the picture: choose a smaller one.");
  return blob;
}

export function createSvg(drawing: Drawing): Blob {
  const { width, height, unit } = drawing;
  const surface = createSvgSurface(width, height, VECTOR_SCALE);
  drawing.paint(surface);
  if (unit !== 1) for (const [side, length] of Object.entries({ width, height })) surface.element.setAttribute(side, `${Math.round((length * unit * 1000) / 96) / 1000}in`);
  return createSvgFile(surface.element);
}
