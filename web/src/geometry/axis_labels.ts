// Chooses which tokens of an axis get a label at this zoom, and which positions a number.
//
// Pixels per token < 0.5: section and paragraph names, the important ones first, none over another. 0.5 to 9: the same, and every k-th
// token between them, k a power of two. From 9: every token. Pure; measures no text: a name needs `spacing` pixels along its axis.

export interface AxisLabel {
  position: number;
  text: string;
  kind: "section" | "token";
}

/** A heading or paragraph of the text. */
export type AxisSection = readonly [position: number, importance: number, text: string];

export interface AxisView {
  /** Token at the start of the plot, with fraction. */
  first: number;
  zoom: number;
  pixels: number;
  length: number;
}

const TOKEN_LABELS_FROM_ZOOM = 0.5;
export const EVERY_TOKEN_FROM_ZOOM = 9;

/** Labels of an axis. `sections` are sorted by importance. `text` returns undefined while a token's text is not loaded. */
export function chooseLabels(axis: AxisView, sections: readonly AxisSection[], text: (position: number) => string | undefined, spacing: number): AxisLabel[] {
  const { first, zoom, pixels, length } = axis;
  const from = Math.max(0, Math.floor(first));
  const to = Math.min(length, Math.ceil(first + pixels / zoom));
  const labels: AxisLabel[] = [];
  if (zoom >= EVERY_TOKEN_FROM_ZOOM) {
    for (let position = from; position < to; position++) {
      const found = text(position);
      if (found !== undefined) labels.push({ position, text: found, kind: "token" });
    }
    return labels;
  }
  // One slot is one spacing: a label may be next to a taken slot if it is far enough from the label in it.
  const slots = new Map<number, number>();
  const tryPlace = (position: number): boolean => {
    const at = (position + 0.5) * zoom;
    const slot = Math.floor(at / spacing);
    for (let near = slot - 1; near <= slot + 1; near++) {
      const other = slots.get(near);
      if (other !== undefined && Math.abs(other - at) < spacing) return false;
    }
    slots.set(slot, at);
    return true;
  };
  for (const [position, , name] of sections) {
    if (position >= from && position < to && tryPlace(position)) labels.push({ position, text: name, kind: "section" });
  }
  if (zoom < TOKEN_LABELS_FROM_ZOOM) return labels;
  let every = 1;
  while (every * zoom < spacing) every *= 2;
  for (let position = Math.ceil(from / every) * every; position < to; position += every) {
    const found = text(position);
    if (found !== undefined && tryPlace(position)) labels.push({ position, text: found, kind: "token" });
  }
  return labels;
}

/** Round positions at least `spacing` pixels apart: 1, 2 or 5 times a power of ten. */
export function chooseNumbers(axis: AxisView, spacing: number): number[] {
  const { first, zoom, pixels, length } = axis;
  const least = spacing / zoom;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((one) => one >= least) ?? 1);
  const result: number[] = [];
  const last = Math.min(length - 1, first + pixels / zoom);
  for (let position = Math.max(0, Math.ceil(first / step) * step); position <= last; position += step) result.push(position);
  return result;
}
