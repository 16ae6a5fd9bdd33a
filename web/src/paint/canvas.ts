// Canvas elements: sized in whole device pixels, scaled to CSS pixels.
import type { Box } from "../geometry/box";
import type { Surface } from "./surface";

/** As in style/base.css. */
const LARGE = 1.5;

/** Pixels of the window per CSS pixel of an element: more than 1 in presentation size. */
export function getEnlargement(element: HTMLElement): number {
  return element.closest("[data-large=true]") ? LARGE : 1;
}

/** Device pixels per CSS pixel of an element. */
export function getPixelScale(element: HTMLElement): number {
  return (devicePixelRatio || 1) * getEnlargement(element);
}

/** A canvas that covers its parent; the labels for screen readers are on the parent. */
export function addCanvas(parent: HTMLElement, name: string): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.className = name;
  canvas.style.position = "absolute";
  canvas.setAttribute("aria-hidden", "true");
  parent.append(canvas);
  return canvas;
}

export function resizeCanvas(canvas: HTMLCanvasElement, box: Box, scale: number): void {
  const [width, height] = [Math.round(box.width * scale), Math.round(box.height * scale)];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  Object.assign(canvas.style, { left: `${box.left}px`, top: `${box.top}px`, width: `${width / scale}px`, height: `${height / scale}px` });
}

export function getSurface(canvas: HTMLCanvasElement, scale: number): Surface {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser gives no 2D canvas.");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width: canvas.width / scale, height: canvas.height / scale, scale };
}

/** A canvas of this many CSS pixels, cleared, as sharp as the screen. */
export function prepareSurface(canvas: HTMLCanvasElement, width: number, height: number): Surface | null {
  const scale = getPixelScale(canvas.parentElement ?? canvas);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (!context) return null;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width, height, scale };
}
