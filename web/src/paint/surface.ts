// What every painter draws on. A painter gets all it needs as arguments: the screen and an export look the same.

import type { Box } from "../geometry/box";

export type Context = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

export interface Surface {
  context: Context;
  /** CSS pixels; the context is already scaled. */
  width: number;
  height: number;
  /** Device pixels per CSS pixel. */
  scale: number;
  /** For vector output: the fill of the hatch. The heatmap is then one image with a pixel per bin. */
  hatch?(theme: Theme): string;
}

export interface Theme {
  paper: string;
  ink: string;
  muted: string;
  line: string;
  panel: string;
  accent: string;
  query: string;
  key: string;
  hatch: string;
  hatchGround: string;
  strip: string;
}

// Query and key are the blue and the orange of Okabe and Ito, darker or lighter depending on the background.
export const lightTheme: Theme = {
  paper: "#ffffff",
  ink: "#1b1f24",
  muted: "#5c6570",
  line: "#d5dae0",
  panel: "#e6eaee",
  accent: "#6b3fc0",
  query: "#0072b2",
  key: "#d55e00",
  hatch: "#d3d8de",
  hatchGround: "#f4f6f8",
  strip: "#8d98a5",
};

export const darkTheme: Theme = {
  paper: "#14171a",
  ink: "#e6e9ec",
  muted: "#98a2ad",
  line: "#343a41",
  panel: "#1d2125",
  accent: "#bd9cf7",
  query: "#56b4e9",
  key: "#e69f00",
  // Lighter than the darkest colours of weights, which would else vanish in it.
  hatch: "#5b646e",
  hatchGround: "#3a4149",
  strip: "#6b7682",
};

export const themes = { light: lightTheme, dark: darkTheme };

export const fonts = {
  text: 'system-ui, -apple-system, "Segoe UI", sans-serif',
  mono: 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
};

/** The nearest whole device pixel, in CSS pixels. */
export function snapToPixel(value: number, scale: number): number {
  return Math.round(value * scale) / scale;
}

/** A line one device pixel thick lies on pixel centres, or it smears over two. */
export function alignHairline(value: number, scale: number): number {
  return (Math.floor(value * scale) + 0.5) / scale;
}

/** Paints inside a box only. */
export function clipTo(surface: Surface, box: Box, paint: () => void): void {
  const { context } = surface;
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.width, box.height);
  context.clip();
  paint();
  context.restore();
}
