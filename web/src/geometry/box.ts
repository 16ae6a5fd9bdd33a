/** Rectangles in CSS pixels. */

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export function contains(box: Box, x: number, y: number): boolean {
  return x >= box.left && x < box.left + box.width && y >= box.top && y < box.top + box.height;
}
