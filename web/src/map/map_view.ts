// The map of one head: two canvases, the hand on them, and the loop that draws only when something has changed.
//
// In: a head, and the state. Out: events for what the user does; the view it moved to. Everything drawn comes from the state and the data.
// Moves are instant: nothing is animated.
import { canvasIn, sized, surfaceOf } from "./canvas";
import { lookup, sameScale, type Scale } from "../paint/colour";
import { paintHeat, paintOverlay, type Scene } from "./frame";
import { HeadData, type Reading, type Span } from "./head_data";
import { inside, layoutOf, type Layout } from "./layout";
import { minimapShown, minimapZoom } from "../paint/minimap";
import { VALUES_FROM } from "../paint/marks";
import { dark, light, type Box } from "../paint/surface";
import { title, visible } from "../paint/token_text";
import { Pictures } from "./pictures";
import { listenToPointer, type Point } from "./pointer";
import { headNumber, type Meta, type Side } from "../server/protocol";
import { DEFAULT_STATE, ranged, type State } from "../state";
import type { Transport } from "../server/transport";
import * as viewports from "./viewport";
import type { Viewport } from "./viewport";

export type { Point, Reading, Span };

/** One pair: this query looks at this key. */
export interface Cell {
  query: number;
  key: number;
}

export interface MapEvents {
  /** Once a frame after moves by pointer, wheel or method. (null, null) is the opening view ("fit"). */
  moved(centre: Cell | null, zoom: number | null): void;
  /** Also called again for the same cell when its exact value has arrived. */
  hovered(cell: Cell | null): void;
  picked(cell: Cell): void;
  pickedQuery(query: number): void;
  pickedKey(key: number): void;
}

export interface MapOptions {
  /** Token texts from a cache, at once; undefined when not there yet (and then loads them). Call update() when they have come. */
  tokens(side: Side, from: number, to: number): string[] | undefined;
}

export interface MapView {
  readonly element: HTMLElement;
  readonly hover: Cell | null;
  setHead(meta: Meta, layer: number, head: number): void;
  /** Everything drawn comes from the state; also the way to say "draw again". */
  update(state: State): void;
  panBy(dxPixels: number, dyPixels: number): void;
  zoomBy(factor: number, at?: Point): void;
  fit(): void;
  oneTokenPerPixel(): void;
  /** Moves just enough that the pair is in view. */
  reveal(cell: Cell): void;
  /** Half-open token ranges in view. */
  visible(): { query: [number, number]; key: [number, number] };
  valueAt(cell: Cell): Reading | undefined;
  /** The strongest places in view, as far as tiles are held. */
  strongest(count: number): Span[];
  /** The mean share of the first key over the rows in view; null until known. */
  sinkShare(): number | null;
  /** Smallest and largest weight of the tiles in view, in bits; null while nothing is held. */
  valueRange(): [number, number] | null;
  resize(): void;
  destroy(): void;
}

interface Place {
  centre: Cell | null;
  zoom: number | null;
}

const OPENING: Place = { centre: null, zoom: null };

export function createMapView(transport: Transport, on: MapEvents, options: MapOptions): MapView {
  return new CanvasMap(transport, on, options);
}

class CanvasMap implements MapView {
  readonly element = document.createElement("div");
  readonly #heat: HTMLCanvasElement;
  readonly #overlay: HTMLCanvasElement;
  readonly #data: HeadData;
  readonly #pictures = new Pictures();
  readonly #stop = new AbortController();
  readonly #observer: ResizeObserver;
  readonly #darkness = matchMedia("(prefers-color-scheme: dark)");
  #state: State = DEFAULT_STATE;
  #layout: Layout = layoutOf(0, 0, { queries: 1, keys: 1, texts: true });
  #longest = Infinity;
  #view: Viewport | null = null;
  /** The place the state named last, or that was told last: only another one moves the view. */
  #told: Place = OPENING;
  #colours: Scale | null = null;
  #hover: { query: number; key: number; x: number; y: number } | null = null;
  #rubber: Box | null = null;
  #frame = 0;
  #heatChanged = true;
  #moved = false;
  #scale = 1;
  #fresh = true;

  constructor(
    transport: Transport,
    readonly on: MapEvents,
    readonly options: MapOptions,
  ) {
    const { element } = this;
    element.className = "map";
    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.setAttribute("aria-label", "Attention map: rows are queries, columns are keys");
    Object.assign(element.style, { position: "relative", overflow: "hidden", touchAction: "none", userSelect: "none" });
    this.#heat = canvasIn(element, "map-heat");
    this.#overlay = canvasIn(element, "map-overlay");
    this.#data = new HeadData(transport, () => this.#arrived());
    const stopListening = listenToPointer(element, {
      pan: (dx, dy) => this.panBy(dx, dy),
      zoom: (factor, at) => this.#zoomAt(factor, at),
      click: (at) => this.#click(at),
      doubleClick: (at) => inside(this.#layout.plot, at.x, at.y) && this.#zoomAt(2, at),
      hover: (at) => this.#point(at),
      grab: (at) => this.#view !== null && minimapShown(this.#view) && inside(this.#layout.minimap, at.x, at.y),
      grabbed: (at) => this.#jump(at),
      rubber: (from, to) => this.#setRubber(boxBetween(from, to)),
      boxed: (from, to) => this.#boxed(from, to),
    });
    this.#stop.signal.addEventListener("abort", stopListening);
    this.#darkness.addEventListener("change", () => this.#changed(true), { signal: this.#stop.signal });
    this.#observer = new ResizeObserver(() => this.resize());
    this.#observer.observe(element);
  }

  get hover(): Cell | null {
    return this.#hover && { query: this.#hover.query, key: this.#hover.key };
  }

  setHead(meta: Meta, layer: number, head: number): void {
    const before = this.#data.layer;
    this.#data.setHead(meta, layer, head);
    const about = this.#data.layer;
    this.element.setAttribute("aria-label", `Attention map of ${title(about?.name ?? "")} head ${headNumber(meta, layer, head)}: rows are queries, columns are keys`);
    if (!before || before.queries !== about?.queries || before.keys !== about.keys || before.texts !== about.texts) {
      this.#view = null;
      this.#hover = null;
      this.#told = OPENING;
      this.resize();
    }
    this.#fresh = true;
    this.#recolour();
    this.#changed(true);
  }

  update(state: State): void {
    this.#state = state;
    this.#recolour();
    if (this.#view && this.#longest !== this.#longestName()) this.resize();
    if (this.#view && !samePlace(state, this.#told, this.#view)) {
      this.#told = { centre: state.centre, zoom: state.zoom };
      this.#view = this.#placed(this.#view);
    }
    this.#changed(true);
  }

  panBy(dx: number, dy: number): void {
    if (this.#view) this.#move(viewports.panned(this.#view, dx, dy));
  }

  zoomBy(factor: number, at?: Point): void {
    const { plot } = this.#layout;
    this.#zoomAt(factor, at ?? { x: plot.left + plot.width / 2, y: plot.top + plot.height / 2 });
  }

  fit(): void {
    if (this.#view) this.#move(viewports.fitted(this.#view));
  }

  oneTokenPerPixel(): void {
    if (this.#view) this.zoomBy(1 / this.#view.zoom);
  }

  reveal(cell: Cell): void {
    if (this.#view) this.#move(viewports.revealing(this.#view, cell.query, cell.key));
  }

  visible(): { query: [number, number]; key: [number, number] } {
    if (!this.#view) return { query: [0, 0], key: [0, 0] };
    const { query, key } = viewports.visibleRange(this.#view);
    return { query: [...query], key: [...key] };
  }

  valueAt(cell: Cell): Reading | undefined {
    return this.#view ? this.#data.reading(cell.query, cell.key, this.#view, this.#state.channel) : undefined;
  }

  strongest(count: number): Span[] {
    return this.#view ? this.#data.strongest(this.#view, this.#state.channel, count) : [];
  }

  sinkShare(): number | null {
    return this.#view ? this.#data.sinkShare(this.#view) : null;
  }

  valueRange(): [number, number] | null {
    return this.#view ? this.#data.valueRange(this.#view, this.#state.channel) : null;
  }

  resize(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    const layer = this.#data.layer;
    if (width === 0 || height === 0 || !layer) return;
    this.#longest = this.#longestName();
    this.#layout = layoutOf(width, height, layer, this.#longest);
    this.#scale = devicePixelRatio;
    const { plot } = this.#layout;
    sized(this.#heat, plot, this.#scale);
    sized(this.#overlay, { left: 0, top: 0, width, height }, this.#scale);
    const before = this.#view;
    const opened = viewports.opening(layer.queries, layer.keys, plot);
    if (!before) {
      this.#told = { centre: this.#state.centre, zoom: this.#state.zoom };
      this.#view = this.#placed(opened);
    } else if (this.#told.zoom === null) this.#view = opened;
    else {
      const centre = viewports.centreOf(before);
      this.#view = viewports.centred(viewports.resized(before, plot), centre.query, centre.key, before.zoom);
    }
    this.#changed(true);
    // A canvas whose size is set is blank: draw before the browser shows it.
    this.#draw();
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#stop.abort();
    this.#data.close();
    this.#pictures.clear();
    this.element.remove();
  }

  /** Of the keys of a text that opens fully labelled; until they are there, as it was. */
  #longestName(): number {
    const layer = this.#data.layer;
    if (!layer?.texts || layer.keys >= viewports.OPENS_LABELLED_BELOW) return Infinity;
    const names = this.options.tokens("key", 0, layer.keys);
    return names ? Math.max(...names.map((name) => visible(name).length)) : this.#longest;
  }

  /** The colours the state asks for; a range left open follows the length of the text. */
  #recolour(): void {
    const { colours, linear, range } = ranged(this.#state, this.#data.layer?.keys ?? 1);
    if (sameScale(this.#colours, { colours, linear, range })) return;
    this.#colours = { colours, linear, range };
    this.#pictures.setLookup(lookup(this.#colours));
  }

  /** The view that the told place names. */
  #placed(view: Viewport): Viewport {
    const { centre, zoom } = this.#told;
    const opened = viewports.opening(view.queries, view.keys, view);
    if (zoom === null && centre === null) return opened;
    const { query, key } = centre ?? viewports.centreOf(view);
    return viewports.centred(view, query, key, zoom ?? opened.zoom);
  }

  #move(view: Viewport): void {
    this.#view = view;
    this.#moved = true;
    // The pointer stays, the token under it changes.
    if (this.#hover) this.#point(this.#hover);
    this.#changed(true);
  }

  #zoomAt(factor: number, at: Point): void {
    const { plot } = this.#layout;
    if (this.#view) this.#move(viewports.zoomedAt(this.#view, this.#view.zoom * factor, at.x - plot.left, at.y - plot.top));
  }

  #jump(at: Point): void {
    const view = this.#view;
    if (!view) return;
    const { minimap } = this.#layout;
    const zoom = minimapZoom(minimap, view);
    this.#move(viewports.centred(view, (at.y - minimap.top) / zoom, (at.x - minimap.left) / zoom, view.zoom));
  }

  #setRubber(box: Box | null): void {
    this.#rubber = box;
    this.#changed(false);
  }

  #boxed(from: Point, to: Point | null): void {
    this.#setRubber(null);
    if (!to || !this.#view) return;
    const [{ plot }, box] = [this.#layout, boxBetween(from, to)];
    this.#move(viewports.boxed(this.#view, box.left - plot.left, box.top - plot.top, box.width, box.height));
  }

  #cellAt(at: Point): Cell | null {
    const { plot } = this.#layout;
    const view = this.#view;
    if (!view) return null;
    const query = Math.floor(view.query + (at.y - plot.top) / view.zoom);
    const key = Math.floor(view.key + (at.x - plot.left) / view.zoom);
    return query >= 0 && key >= 0 && query < view.queries && key < view.keys ? { query, key } : null;
  }

  #point(at: Point | null): void {
    const cell = at && inside(this.#layout.plot, at.x, at.y) ? this.#cellAt(at) : null;
    const before = this.#hover;
    this.#hover = at && cell && { ...cell, x: at.x, y: at.y };
    this.element.style.cursor = cell ? "crosshair" : "default";
    if (cell) this.#data.cells.want({ query: [cell.query, cell.query + 1], key: [cell.key, cell.key + 1] });
    if (before?.query !== cell?.query || before?.key !== cell?.key) this.on.hovered(cell);
    if (before || cell) this.#changed(false);
  }

  #click(at: Point): void {
    const { plot } = this.#layout;
    if (inside(plot, at.x, at.y)) {
      const cell = this.#cellAt(at);
      if (cell) this.on.picked(cell);
    } else if (at.x < plot.left && at.y >= plot.top && at.y < plot.top + plot.height) {
      const cell = this.#cellAt({ x: plot.left, y: at.y });
      if (cell) this.on.pickedQuery(cell.query);
    } else if (at.y < plot.top && at.x >= plot.left && at.x < plot.left + plot.width) {
      const cell = this.#cellAt({ x: at.x, y: plot.top });
      if (cell) this.on.pickedKey(cell.key);
    }
  }

  #arrived(): void {
    if (this.#hover) this.on.hovered(this.hover);
    this.#changed(true);
  }

  #changed(heat: boolean): void {
    this.#heatChanged ||= heat;
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const view = this.#view;
    if (!view || !this.#colours || this.element.clientWidth === 0) return;
    if (devicePixelRatio !== this.#scale) return this.resize();
    if (this.#moved) this.#tell(view);
    const { channel } = this.#state;
    this.#data.want(view, channel, this.#fresh);
    this.#fresh = false;
    if (view.zoom >= VALUES_FROM) this.#data.cells.want(viewports.visibleRange(view));
    const scene: Scene = {
      layout: this.#layout,
      theme: this.#darkness.matches ? dark : light,
      view,
      data: this.#data,
      drawing: this.#data.drawing(view, channel),
      pictures: this.#pictures,
      scale: this.#colours,
      mode: channel,
      hideSink: this.#state.hideSink,
      pinQuery: this.#state.pinQuery,
      pinKey: this.#state.pinKey,
      hover: this.#hover,
      rubber: this.#rubber,
      text: (side, position) => this.options.tokens(side, position, position + 1)?.[0],
    };
    if (this.#heatChanged) paintHeat(surfaceOf(this.#heat, this.#scale), scene);
    paintOverlay(surfaceOf(this.#overlay, this.#scale), scene);
    this.#heatChanged = false;
    this.#report(scene);
  }

  #tell(view: Viewport): void {
    this.#moved = false;
    const opened = viewports.opening(view.queries, view.keys, view);
    const home = view.zoom === opened.zoom && view.query === opened.query && view.key === opened.key;
    this.#told = home ? OPENING : { centre: viewports.centreOf(view), zoom: view.zoom };
    this.on.moved(this.#told.centre, this.#told.zoom);
  }

  /** Says on the element what is drawn; on the page, once, that the first real heatmap is. */
  #report(scene: Scene): void {
    const { pieces } = scene.drawing;
    const whole = pieces.length > 0 && pieces.every((piece) => piece.state === "drawn" || piece.state === "masked");
    const partial = pieces.some((piece) => piece.tile?.partial);
    const state = !whole ? "loading" : partial ? "preview" : "ready";
    if (this.element.dataset["state"] !== state) this.element.dataset["state"] = state;
    const page = document.documentElement;
    if (state === "ready" && page.dataset["state"] !== "ready") {
      page.dataset["state"] = "ready";
      performance.mark("first-heatmap");
    }
  }
}

function boxBetween(one: Point, other: Point): Box {
  return { left: Math.min(one.x, other.x), top: Math.min(one.y, other.y), width: Math.abs(one.x - other.x), height: Math.abs(one.y - other.y) };
}

/** Nearer than half a pixel is the same place: an address is rounded, and must not push the view. */
function samePlace(state: State, told: Place, view: Viewport): boolean {
  if ((state.zoom === null) !== (told.zoom === null) || (state.centre === null) !== (told.centre === null)) return false;
  if (state.zoom !== null && told.zoom !== null && Math.abs(state.zoom / told.zoom - 1) > 1e-4) return false;
  if (!state.centre || !told.centre) return true;
  return Math.max(Math.abs(state.centre.query - told.centre.query), Math.abs(state.centre.key - told.centre.key)) * view.zoom < 0.5;
}
