// What a hand does on the map: drag, wheel, double click, shift-drag, pinch, click. Knows pixels of one element, not what they mean.

export interface Point {
  x: number;
  y: number;
}

export interface Gestures {
  pan(dx: number, dy: number): void;
  zoom(factor: number, at: Point): void;
  click(at: Point): void;
  doubleClick(at: Point): void;
  hover(at: Point | null): void;
  /** True when a press here is taken (the minimap): it is told of every move until the release. */
  grab(at: Point): boolean;
  grabbed(at: Point): void;
  /** A box being drawn; null when given up. */
  rubber(from: Point, to: Point): void;
  boxed(from: Point, to: Point | null): void;
}

/** A press that moves less is a click. */
const CLICK_PIXELS = 4;
const PIXELS_PER_LINE = 20;

type Doing = "nothing" | "pressing" | "panning" | "boxing" | "pinching" | "grabbing";

export function listenToPointer(element: HTMLElement, on: Gestures, wheelZooms: "always" | "with-ctrl"): () => void {
  const pointers = new Map<number, Point>();
  let doing: Doing = "nothing";
  let start: Point = { x: 0, y: 0 };
  let last: Point = start;
  let spread = 0;
  const stop = new AbortController();
  const { signal } = stop;

  const place = (event: MouseEvent): Point => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const pinch = (): { middle: Point; spread: number } => {
    const [one = start, other = start] = [...pointers.values()];
    return { middle: { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 }, spread: Math.hypot(one.x - other.x, one.y - other.y) };
  };

  const down = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    const at = place(event);
    pointers.set(event.pointerId, at);
    element.setPointerCapture(event.pointerId);
    if (pointers.size === 2) {
      if (doing === "boxing") on.boxed(start, null);
      doing = "pinching";
      ({ middle: last, spread } = pinch());
      return;
    }
    start = last = at;
    if (on.grab(at)) {
      doing = "grabbing";
      on.grabbed(at);
    } else doing = event.shiftKey ? "boxing" : "pressing";
  };

  const move = (event: PointerEvent): void => {
    const at = place(event);
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, at);
    if (doing === "pinching") {
      const now = pinch();
      on.pan(last.x - now.middle.x, last.y - now.middle.y);
      if (spread > 0 && now.spread > 0) on.zoom(now.spread / spread, now.middle);
      last = now.middle;
      spread = now.spread;
      return;
    }
    if (doing === "pressing" && Math.hypot(at.x - start.x, at.y - start.y) >= CLICK_PIXELS) doing = "panning";
    if (doing === "panning") {
      on.pan(last.x - at.x, last.y - at.y);
      last = at;
    } else if (doing === "boxing") on.rubber(start, at);
    else if (doing === "grabbing") on.grabbed(at);
    if (event.pointerType !== "touch" || doing === "pressing") on.hover(doing === "grabbing" ? null : at);
  };

  const up = (event: PointerEvent): void => {
    if (!pointers.delete(event.pointerId)) return;
    const at = place(event);
    const far = Math.hypot(at.x - start.x, at.y - start.y) >= CLICK_PIXELS;
    if (doing === "boxing") on.boxed(start, far && event.type === "pointerup" ? at : null);
    else if (doing === "pressing" && event.type === "pointerup") on.click(at);
    // After a pinch the finger that stays begins a new drag from where it is.
    const [left] = [...pointers.values()];
    doing = left ? "panning" : "nothing";
    if (left) start = last = left;
  };

  const wheel = (event: WheelEvent): void => {
    if (wheelZooms === "with-ctrl" && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? PIXELS_PER_LINE : event.deltaMode === WheelEvent.DOM_DELTA_PAGE ? 400 : 1;
    // A pinch on a touchpad arrives as ctrl + wheel with small steps.
    const octaves = (-event.deltaY * unit) / (event.ctrlKey ? 60 : 240);
    on.zoom(2 ** Math.max(-1, Math.min(1, octaves)), place(event));
  };

  element.addEventListener("pointerdown", down, { signal });
  element.addEventListener("pointermove", move, { signal });
  element.addEventListener("pointerup", up, { signal });
  element.addEventListener("pointercancel", up, { signal });
  element.addEventListener("pointerleave", () => on.hover(null), { signal });
  element.addEventListener("dblclick", (event) => on.doubleClick(place(event)), { signal });
  element.addEventListener("wheel", wheel, { signal, passive: false });
  return () => stop.abort();
}
