/** A bar chart on a canvas that follows its width, the screen's sharpness and the page's light or dark. */

import { element } from "./dom";
import type { Host, Surroundings } from "../host";
import { paintBars, paintSteps } from "../paint/bar_chart";
import { dark, light, type Surface, type Theme } from "../paint/surface";

export interface ChartData {
  readonly values: ArrayLike<number>;
  readonly colour: "query" | "key" | "accent";
  readonly marked?: number | null;
  /** Names under the bars; with them the chart is one of bins. */
  readonly names?: readonly string[];
  /** The whole chart in words. */
  readonly label: string;
}

export interface ChartEvents {
  hovered?(bar: number | null): void;
  picked?(bar: number): void;
}

export class Chart {
  readonly element: HTMLCanvasElement;
  #data: ChartData | null = null;

  constructor(
    private readonly height: number,
    private readonly around: Surroundings,
    on: ChartEvents = {},
  ) {
    this.element = element("canvas", { class: "chart", role: "img", "aria-label": "no data yet" });
    this.element.style.height = `${height}px`;
    this.element.classList.toggle("pickable", on.picked !== undefined);
    const observer = new ResizeObserver(() => this.#paint());
    observer.observe(this.element);
    around.signal.addEventListener("abort", () => observer.disconnect());
    around.host.onTheme(() => this.#paint(), around.signal);
    this.element.addEventListener("pointermove", (event) => on.hovered?.(this.#barAt(event)));
    this.element.addEventListener("pointerleave", () => on.hovered?.(null));
    this.element.addEventListener("click", (event) => {
      const bar = this.#barAt(event);
      if (bar !== null) on.picked?.(bar);
    });
  }

  show(data: ChartData): void {
    this.#data = data;
    this.element.setAttribute("aria-label", data.label);
    this.#paint();
  }

  /** Nothing is known yet: an old picture under a new name would be a wrong one. */
  clear(): void {
    this.#data = null;
    this.element.setAttribute("aria-label", "no data yet");
    surfaceOf(this.element, this.element.clientWidth, this.height);
  }

  #barAt(event: MouseEvent): number | null {
    const count = this.#data?.values.length ?? 0;
    const width = this.element.clientWidth;
    if (count === 0 || width === 0) return null;
    return Math.min(count - 1, Math.max(0, Math.floor((event.offsetX / width) * count)));
  }

  #paint(): void {
    const width = this.element.clientWidth;
    if (!this.#data || width === 0) return;
    const surface = surfaceOf(this.element, width, this.height);
    if (!surface) return;
    const theme = themeOf(this.around.host);
    const box = { left: 0, top: 0, width, height: this.height - 1 };
    const { values, names, marked = null } = this.#data;
    const colour = theme[this.#data.colour];
    if (names) paintSteps(surface, box, theme, { values, names, colour });
    else paintBars(surface, box, theme, { values, colour, marked });
  }
}

/** A canvas of this many CSS pixels, cleared, as sharp as the screen. */
export function surfaceOf(canvas: HTMLCanvasElement, width: number, height: number): Surface | null {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (!context) return null;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width, height, scale };
}

export function themeOf(host: Host): Theme {
  return host.theme() === "dark" ? dark : light;
}
