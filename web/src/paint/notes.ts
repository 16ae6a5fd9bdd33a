// Words over the map: the watermark of a picture the model did not compute, and how far the server is with building.
import { fonts, type Box, type Surface, type Theme } from "./surface";
import { widthOf } from "./words";

export function paintWatermark(surface: Surface, plot: Box, note: string): void {
  const { context } = surface;
  const size = Math.max(12, Math.min(26, (plot.width / Math.max(1, note.length)) * 1.6));
  context.save();
  context.translate(plot.left + plot.width / 2, plot.top + plot.height / 2);
  context.rotate(-0.35);
  context.font = `600 ${size}px ${fonts.text}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = "rgb(0 0 0 / 45%)";
  context.fillStyle = "rgb(255 255 255 / 70%)";
  for (const line of [-1, 0, 1]) {
    const y = (line * plot.height) / 2.6;
    context.strokeText(note, 0, y);
    context.fillText(note, 0, y);
  }
  context.restore();
}

/** A label in the lower left corner of the plot and a thin bar along its foot. Progress null: not known. */
export function paintBuilding(surface: Surface, plot: Box, theme: Theme, progress: number | null): void {
  const { context } = surface;
  const bottom = plot.top + plot.height;
  const words = progress === null ? "sampled preview, waiting to be built" : `sampled preview, building ${Math.floor(progress * 100)} %`;
  const font = `11px ${fonts.text}`;
  const width = widthOf(context, font, words) + 16;
  context.font = font;
  context.fillStyle = theme.paper;
  context.fillRect(plot.left, bottom - 26, width, 26);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(words, plot.left + 8, bottom - 14);
  context.fillStyle = theme.line;
  context.fillRect(plot.left, bottom - 3, plot.width, 3);
  context.fillStyle = theme.accent;
  context.fillRect(plot.left, bottom - 3, plot.width * Math.min(1, progress ?? 0), 3);
}
