// A photo with a value per patch over it: the same painter for the screen, small pictures, and files.
//
// In: a surface, the photo, and the values of one head. Out: pixels. A patch is a rectangle of one colour, which is the more opaque the larger
// its value; patches without a value are hatched.
import type { Box } from "../geometry/box";
import { getTable } from "../paint/colour";
import { clipTo, type Surface, type Theme } from "../paint/surface";
import { paintHatch } from "../paint/hatch";
import type { Colours } from "../state";
import type { Patch, PatchBox } from "./patch_values";

export interface Picture {
  readonly photo: HTMLCanvasElement | null;
  /** Row by row; NaN where there is no value. */
  readonly values: Float32Array;
  readonly rows: number;
  readonly columns: number;
  /** The part of the photo that the patches cover, as fractions. */
  readonly part: readonly [left: number, top: number, right: number, bottom: number];
  /** The value of the brightest colour. */
  readonly largest: number;
  readonly colours: Colours;
  /** Of the largest value. */
  readonly opacity: number;
}

export interface PictureMarks {
  readonly query: Patch | null;
  readonly key: Patch | null;
  readonly cursor: Patch | null;
  readonly region: PatchBox | null;
}

export const NO_MARKS: PictureMarks = { query: null, key: null, cursor: null, region: null };
/** The share of its opacity that a value of 0 has: what gets nothing is darker than the photo. */
const LEAST_OPACITY = 0.2;

/** The pixels under the patches, in the coordinates of the surface. */
export function getPatchArea({ part: [left, top, right, bottom] }: Pick<Picture, "part">, box: Box): Box {
  return {
    left: box.left + left * box.width,
    top: box.top + top * box.height,
    width: (right - left) * box.width,
    height: (bottom - top) * box.height,
  };
}

/** The patch under a point; null outside of all. */
export function findPatchAt(picture: Pick<Picture, "part" | "rows" | "columns">, box: Box, x: number, y: number): Patch | null {
  const area = getPatchArea(picture, box);
  const row = Math.floor(((y - area.top) / area.height) * picture.rows);
  const column = Math.floor(((x - area.left) / area.width) * picture.columns);
  return row >= 0 && row < picture.rows && column >= 0 && column < picture.columns ? { row, column } : null;
}

export function paintPicture(surface: Surface, box: Box, picture: Picture, theme: Theme, marks: PictureMarks = NO_MARKS): void {
  const { context } = surface;
  context.fillStyle = theme.panel;
  context.fillRect(box.left, box.top, box.width, box.height);
  if (picture.photo) {
    // Pixels that are larger than those of the screen stay square.
    context.imageSmoothingEnabled = picture.photo.width >= box.width;
    context.drawImage(picture.photo, box.left, box.top, box.width, box.height);
  }
  clipTo(surface, box, () => {
    const area = getPatchArea(picture, box);
    context.imageSmoothingEnabled = false;
    context.drawImage(createOverlay(picture), area.left, area.top, area.width, area.height);
    picture.values.forEach((value, index) => {
      const [row, column] = [Math.floor(index / picture.columns), index % picture.columns];
      if (Number.isNaN(value)) paintHatch(surface, getRectangle(picture, area, { top: row, left: column, bottom: row, right: column }), theme);
    });
    const outline = (patch: Patch | null, colour: string, inset: number): void => {
      if (patch) strokeBox(surface, getRectangle(picture, area, { top: patch.row, left: patch.column, bottom: patch.row, right: patch.column }), theme.paper, colour, inset);
    };
    if (marks.region) strokeBox(surface, getRectangle(picture, area, marks.region), theme.paper, theme.key, 0);
    outline(marks.key, theme.key, 0);
    outline(marks.query, theme.query, marks.key && marks.query && marks.key.row === marks.query.row && marks.key.column === marks.query.column ? 4 : 0);
    outline(marks.cursor, theme.ink, 2);
  });
}

/** A canvas with a pixel per patch. */
export function createOverlay({ values, rows, columns, largest, colours, opacity }: Picture): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const table = getTable(colours);
  const image = new ImageData(columns, rows);
  values.forEach((value, index) => {
    if (Number.isNaN(value)) return;
    const share = largest > 0 ? Math.min(1, Math.max(0, value / largest)) : 0;
    const entry = Math.round(share * 255);
    image.data.set(table.subarray(entry * 3, entry * 3 + 3), index * 4);
    image.data[index * 4 + 3] = Math.round(255 * opacity * (LEAST_OPACITY + (1 - LEAST_OPACITY) * share));
  });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

function getRectangle({ rows, columns }: Picture, area: Box, { top, left, bottom, right }: PatchBox): Box {
  const [height, width] = [area.height / rows, area.width / columns];
  return { left: area.left + left * width, top: area.top + top * height, width: (right - left + 1) * width, height: (bottom - top + 1) * height };
}

/** A line in a halo, inside of a box. */
function strokeBox({ context }: Surface, { left, top, width, height }: Box, halo: string, colour: string, inset: number): void {
  for (const [style, line] of [[halo, 4], [colour, 2]] as const) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.strokeRect(left + inset + 2, top + inset + 2, Math.max(1, width - 2 * inset - 4), Math.max(1, height - 2 * inset - 4));
  }
}
