/** A bar chart on a canvas that follows the width, the pixel ratio and the theme. */

import { element } from "./dom";
import type { HostContext } from "../host";
import { paintBars, paintSteps } from "../paint/bar_chart";
import { prepareSurface } from "../paint/canvas";
import { themes } from "../paint/surface";

export interface ChartData {
  readonly values: ArrayLike<number>;
  readonly colour: "query" | "key" | "accent";
  readonly marked?: number | null;
  /** Names under the bars; with them the chart is one of bins. */
  readonly names?: readonly string[];
  /** A description for screen readers. */
  readonly label: string;
}

export interface ChartEvents {
  onHover?(bar: number | null): void;
  onPick?(bar: number): void;
}

export class Chart {
  readonly element: HTMLCanvasElement;
  #data: ChartData | null = null;
  /** As observed: to measure it would make the browser lay the page out in the middle of its changes. */
  #width = 0;

  constructor(
    private readonly height: number,
    private readonly context: HostContext,
    events: ChartEvents = {},
  ) {
    this.element = element("canvas", { class: "chart", role: "img", "aria-label": "no data yet" });
    this.element.style.height = `${height}px`;
    this.element.classList.toggle("pickable", events.onPick !== undefined);
    const observer = new ResizeObserver(([entry]) => {
      this.#width = entry?.contentRect.width ?? 0;
      this.#paint();
    });
    observer.observe(this.element);
    context.signal.addEventListener("abort", () => observer.disconnect());
    context.host.onThemeChange(() => this.#paint(), context.signal);
    this.element.addEventListener("pointermove", (event) => events.onHover?.(this.#findBar(event)));
    this.element.addEventListener("pointerleave", () => events.onHover?.(null));
    this.element.addEventListener("click", (event) => {
      const bar = this.#findBar(event);
      if (bar !== null) events.onPick?.(bar);
    });
  }

  show(data: ChartData): void {
    this.#data = data;
    this.element.setAttribute("aria-label", data.label);
    this.#paint();
  }

  /** Clear the old chart while the new data is loading. */
  clear(): void {
    this.#data = null;
    this.element.setAttribute("aria-label", "no data yet");
    const { width } = this.element;
    this.element.width = width; // erases it
  }

  #findBar(event: MouseEvent): number | null {
    const count = this.#data?.values.length ?? 0;
    if (count === 0 || this.#width === 0) return null;
    return Math.min(count - 1, Math.max(0, Math.floor((event.offsetX / this.#width) * count)));
  }

  #paint(): void {
    const width = this.#width;
    if (!this.#data || width === 0) return;
    const surface = prepareSurface(this.element, width, this.height);
    if (!surface) return;
    const theme = themes[this.context.host.getTheme()];
    const box = { left: 0, top: 0, width, height: this.height - 1 };
    const { values, names, marked = null } = this.#data;
    const colour = theme[this.#data.colour];
    if (names) paintSteps(surface, box, theme, { values, names, colour });
    else paintBars(surface, box, theme, { values, colour, marked });
  }
}
