// Text over the map: the watermark of weights that the model did not compute, and the server's progress.
import type { Box } from "../geometry/box";
import { fonts, type Surface, type Theme } from "./surface";
import { measureWidth, wrapText } from "./canvas_text";

/** Every 200 pixels or so, in whole lines, and never so dark that the picture is lost. */
export function paintWatermark(surface: Surface, box: Box, note: string): void {
  const { context } = surface;
  const font = `600 14px ${fonts.text}`;
  const lines = wrapText(context, font, note, box.width - 16);
  const times = Math.max(1, Math.floor(box.height / 200));
  context.font = font;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = "rgb(0 0 0 / 40%)";
  context.fillStyle = "rgb(255 255 255 / 75%)";
  for (let time = 0; time < times; time++) {
    lines.forEach((line, index) => {
      const y = box.top + (box.height * (time + 0.5)) / times + 18 * (index - (lines.length - 1) / 2);
      context.strokeText(line, box.left + box.width / 2, y);
      context.fillText(line, box.left + box.width / 2, y);
    });
  }
}

/** A label in the lower left corner of the plot. */
export function paintNote(surface: Surface, plot: Box, theme: Theme, words: string): void {
  const { context } = surface;
  const bottom = plot.top + plot.height;
  const font = `11px ${fonts.text}`;
  const width = measureWidth(context, font, words) + 16;
  context.font = font;
  context.fillStyle = theme.paper;
  context.fillRect(plot.left, bottom - 26, width, 26);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(words, plot.left + 8, bottom - 14);
}

/** The server's progress as text and as a thin bar below the plot; null: not known. */
export function paintBuilding(surface: Surface, plot: Box, theme: Theme, progress: number | null): void {
  const { context } = surface;
  const bottom = plot.top + plot.height;
  paintNote(surface, plot, theme, progress === null ? "sampled preview, waiting to be built" : `sampled preview, building ${Math.floor(progress * 100)}%`);
  context.fillStyle = theme.line;
  context.fillRect(plot.left, bottom - 3, plot.width, 3);
  context.fillStyle = theme.accent;
  context.fillRect(plot.left, bottom - 3, plot.width * Math.min(1, progress ?? 0), 3);
}
