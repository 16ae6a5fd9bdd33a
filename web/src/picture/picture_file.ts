/** The picture as a file: the photo with its values, and a caption below. */

import { formatModelName } from "../export/captions";
import type { Drawing } from "../export/figure";
import { wrapText } from "../paint/canvas_text";
import { fonts, type Theme } from "../paint/surface";
import type { Meta } from "../server/protocol";
import type { PictureKind } from "../state";
import { paintPicture, type Picture, type PictureMarks } from "./paint_picture";

const WIDTH = 640;
const MARGIN = 10;
const LINE = 15;
const font = `11px ${fonts.text}`;

export function createPictureDrawing(picture: Picture, marks: PictureMarks, aspect: number, theme: Theme, caption: string): Drawing {
  const pen = document.createElement("canvas").getContext("2d");
  const lines = pen ? wrapText(pen, font, caption, WIDTH - 2 * MARGIN) : [caption];
  const pictureHeight = Math.round(WIDTH / aspect);
  const height = pictureHeight + LINE * lines.length + 2 * MARGIN;
  return {
    width: WIDTH,
    height,
    unit: 1,
    leastScale: 1,
    paint(surface) {
      const { context } = surface;
      context.fillStyle = theme.paper;
      context.fillRect(0, 0, WIDTH, height);
      paintPicture(surface, { left: 0, top: 0, width: WIDTH, height: pictureHeight }, picture, theme, marks);
      context.font = font;
      context.fillStyle = theme.muted;
      context.textAlign = "left";
      context.textBaseline = "alphabetic";
      lines.forEach((line, index) => context.fillText(line, MARGIN, pictureHeight + MARGIN + LINE * (index + 0.75)));
    },
  };
}

export function createPictureFileName(meta: Meta, head: string, kind: PictureKind, ending: string): string {
  return `${formatModelName(meta)}_${head}_${kind}.${ending}`;
}
