// Pointer gestures on the map: drag, wheel, double click, shift-drag, pinch, click; in pixels of the element.

import { getEnlargement } from "../paint/canvas";

export interface Point {
  x: number;
  y: number;
}

export interface GestureHandlers {
  pan(dx: number, dy: number): void;
  zoom(factor: number, at: Point): void;
  click(at: Point): void;
  doubleClick(at: Point): void;
  hover(at: Point | null): void;
  /** Returns true when a press starts a drag (on the minimap); `drag` is then called for every move. */
  startDrag(at: Point): boolean;
  drag(at: Point): void;
  /** A box is being drawn; finishBox gets null when it is cancelled. */
  drawBox(from: Point, to: Point): void;
  finishBox(from: Point, to: Point | null): void;
}

/** A press that moves less is a click. */
const CLICK_PIXELS = 4;
const PIXELS_PER_LINE = 20;

type Gesture = "nothing" | "pressing" | "panning" | "boxing" | "pinching" | "grabbing";

export function listenToPointer(element: HTMLElement, handlers: GestureHandlers, wheelZooms: "always" | "with-ctrl"): () => void {
  const pointers = new Map<number, Point>();
  let gesture: Gesture = "nothing";
  let start: Point = { x: 0, y: 0 };
  let last: Point = start;
  let spread = 0;
  const stop = new AbortController();
  const { signal } = stop;

  const toPoint = (event: MouseEvent): Point => {
    const box = element.getBoundingClientRect();
    const enlargement = getEnlargement(element);
    return { x: (event.clientX - box.left) / enlargement, y: (event.clientY - box.top) / enlargement };
  };
  const measurePinch = (): { middle: Point; spread: number } => {
    const [one = start, other = start] = [...pointers.values()];
    return { middle: { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 }, spread: Math.hypot(one.x - other.x, one.y - other.y) };
  };

  const handleDown = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    const at = toPoint(event);
    pointers.set(event.pointerId, at);
    element.setPointerCapture(event.pointerId);
    if (pointers.size === 2) {
      if (gesture === "boxing") handlers.finishBox(start, null);
      gesture = "pinching";
      ({ middle: last, spread } = measurePinch());
      return;
    }
    start = last = at;
    if (handlers.startDrag(at)) {
      gesture = "grabbing";
      handlers.drag(at);
    } else gesture = event.shiftKey ? "boxing" : "pressing";
  };

  const handleMove = (event: PointerEvent): void => {
    const at = toPoint(event);
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, at);
    if (gesture === "pinching") {
      const now = measurePinch();
      handlers.pan(last.x - now.middle.x, last.y - now.middle.y);
      if (spread > 0 && now.spread > 0) handlers.zoom(now.spread / spread, now.middle);
      last = now.middle;
      spread = now.spread;
      return;
    }
    if (gesture === "pressing" && Math.hypot(at.x - start.x, at.y - start.y) >= CLICK_PIXELS) gesture = "panning";
    if (gesture === "panning") {
      handlers.pan(last.x - at.x, last.y - at.y);
      last = at;
    } else if (gesture === "boxing") handlers.drawBox(start, at);
    else if (gesture === "grabbing") handlers.drag(at);
    if (event.pointerType !== "touch" || gesture === "pressing") handlers.hover(gesture === "grabbing" ? null : at);
  };

  const handleUp = (event: PointerEvent): void => {
    if (!pointers.delete(event.pointerId)) return;
    const at = toPoint(event);
    const far = Math.hypot(at.x - start.x, at.y - start.y) >= CLICK_PIXELS;
    if (gesture === "boxing") handlers.finishBox(start, far && event.type === "pointerup" ? at : null);
    else if (gesture === "pressing" && event.type === "pointerup") handlers.click(at);
    // After a pinch the finger that stays begins a new drag from where it is.
    const [left] = [...pointers.values()];
    gesture = left ? "panning" : "nothing";
    if (left) start = last = left;
  };

  const handleWheel = (event: WheelEvent): void => {
    if (wheelZooms === "with-ctrl" && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? PIXELS_PER_LINE : event.deltaMode === WheelEvent.DOM_DELTA_PAGE ? 400 : 1;
    // A pinch on a touchpad arrives as ctrl + wheel with small steps.
    const octaves = (-event.deltaY * unit) / (event.ctrlKey ? 60 : 240);
    handlers.zoom(2 ** Math.max(-1, Math.min(1, octaves)), toPoint(event));
  };

  element.addEventListener("pointerdown", handleDown, { signal });
  element.addEventListener("pointermove", handleMove, { signal });
  element.addEventListener("pointerup", handleUp, { signal });
  element.addEventListener("pointercancel", handleUp, { signal });
  element.addEventListener("pointerleave", () => handlers.hover(null), { signal });
  element.addEventListener("dblclick", (event) => handlers.doubleClick(toPoint(event)), { signal });
  element.addEventListener("wheel", handleWheel, { signal, passive: false });
  return () => stop.abort();
}
