// The map of one head: two canvases, the hand on them, and the loop that draws only when something has changed.
//
// In: a head, and the state. Out: events for what the user does; the view it moved to. Everything drawn comes from the state and the data.
// Moves are instant: nothing is animated.
import { canvasIn, sized, surfaceOf } from "../paint/canvas";
import { lookup, sameScale, type Scale } from "../paint/colour";
import { paintHeat, paintOverlay, paintScene, type Role, type Scene } from "./map_scene";
import type { Host } from "../host";
import type { Drawing, Mode, Reading, Span } from "./map_data";
import { inside, layoutOf, type Layout } from "./map_layout";
import { minimapShown, minimapZoom } from "../paint/minimap";
import { VALUES_FROM } from "../paint/overlays";
import { dark, light, type Box, type Surface, type Theme } from "../paint/surface";
import { title, visible } from "../paint/token_text";
import { Pictures } from "../tiles/tile_images";
import { listenToPointer, type Gestures, type Point } from "./pointer";
import { headNumber, type Meta, type Side } from "../server/protocol";
import { Showing, type Cell, type Shared } from "./shown_heads";
import { DEFAULT_STATE, type State } from "../state";
import type { Transport } from "../server/transport";
import * as viewports from "../geometry/viewport";
import type { Viewport } from "../geometry/viewport";

export type { Cell, Point, Reading, Role, Shared, Span };

export interface MapEvents {
  /** Once a frame after moves by pointer, wheel or method. (null, null) is the opening view ("fit"). */
  moved(centre: Cell | null, zoom: number | null): void;
  /** Also called again for the same cell when its exact value has arrived. */
  hovered(cell: Cell | null): void;
  picked(cell: Cell): void;
  pickedQuery(query: number): void;
  pickedKey(key: number): void;
  /** Everything in view is drawn, and none of it is a preview. */
  drawn?(): void;
}

export interface MapOptions {
  readonly host: Host;
  /** Token texts from a cache, at once; undefined when not there yet (and then loads them). Call update() when they have come. */
  tokens(side: Side, from: number, to: number): string[] | undefined;
}

export interface MapView {
  readonly element: HTMLElement;
  /** The pair under the pointer: a query and the key it looks at, on whichever side of the diagonal it is drawn. */
  readonly hover: Cell | null;
  /** Draws another head of the same shape into the picture; null: no longer. */
  share(other: Shared | null): void;
  /** What the map is called beside another; null: it is alone. */
  setRole(role: Role | null): void;
  /** Marks a pair that is pointed at elsewhere. */
  point(cell: Cell | null): void;
  /** What a picture of two heads says of a pair; null where there is one head. */
  saidOfBoth(cell: Cell): string | null;
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
  /** What a colour stands for now; null while there is no picture. */
  painted(): Painted | null;
  /** The whole picture as it is, without what helps to move, on a surface as large as the element. */
  paintOn(surface: Surface, theme: Theme): void;
  resize(): void;
  destroy(): void;
}

/** What a colour of a picture stands for. */
export type Painted = Pick<Drawing, "stride" | "channel"> & { readonly scale: Scale };

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
  readonly #showing: Showing;
  #role: Role | null = null;
  readonly #pictures = new Pictures();
  readonly #stop = new AbortController();
  readonly #observer: ResizeObserver;
  #state: State = DEFAULT_STATE;
  #layout: Layout = layoutOf(0, 0, { queries: 1, keys: 1, texts: true });
  #longest = Infinity;
  #view: Viewport | null = null;
  /** The place the state named last, or that was told last: only another one moves the view. */
  #told: Place = OPENING;
  #colours: Scale | null = null;
  #hover: { query: number; key: number; x: number; y: number } | null = null;
  /** A pair that is pointed at elsewhere. */
  #pointed: Cell | null = null;
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
    this.#showing = new Showing(transport, () => this.#arrived());
    const gestures: Gestures = {
      pan: (dx, dy) => this.panBy(dx, dy),
      zoom: (factor, at) => this.#zoomAt(factor, at),
      click: (at) => this.#click(at),
      doubleClick: (at) => inside(this.#layout.plot, at.x, at.y) && this.#zoomAt(2, at),
      hover: (at) => this.#point(at),
      grab: (at) => this.#view !== null && minimapShown(this.#view) && inside(this.#layout.minimap, at.x, at.y),
      grabbed: (at) => this.#jump(at),
      rubber: (from, to) => this.#setRubber(boxBetween(from, to)),
      boxed: (from, to) => this.#boxed(from, to),
    };
    this.#stop.signal.addEventListener("abort", listenToPointer(element, gestures, options.host.wheelZooms));
    options.host.onTheme(() => this.#changed(true), this.#stop.signal);
    this.#observer = new ResizeObserver(() => this.resize());
    this.#observer.observe(element);
  }

  get hover(): Cell | null {
    return this.#hover && this.#showing.pairIn(this.#hover);
  }

  share(other: Shared | null): void {
    this.#showing.share(other);
    this.#fresh = true;
    this.#recolour();
    this.#changed(true);
  }

  setRole(role: Role | null): void {
    this.#role = role;
    this.#changed(false);
  }

  point(cell: Cell | null): void {
    this.#pointed = cell;
    if (cell) this.#wantCell(cell);
    this.#changed(false);
  }

  saidOfBoth(cell: Cell): string | null {
    const { query, key } = this.#hover ?? cell;
    return this.#view && (this.#showing.pair?.readout(query, key, this.#view, this.#mode).replace("\n", "; ") ?? null);
  }

  setHead(meta: Meta, layer: number, head: number): void {
    const before = this.#showing.one.layer;
    this.#showing.one.setHead(meta, layer, head);
    const about = this.#showing.one.layer;
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
    return this.#view ? this.#showing.one.reading(cell.query, cell.key, this.#view, this.#mode) : undefined;
  }

  strongest(count: number): Span[] {
    return this.#view ? this.#showing.one.strongest(this.#view, this.#mode, count) : [];
  }

  sinkShare(): number | null {
    return this.#view ? this.#showing.one.sinkShare(this.#view) : null;
  }

  valueRange(): [number, number] | null {
    const { ratio, one, data } = this.#showing;
    return this.#view && (ratio ? one : data).valueRange(this.#view, this.#mode);
  }

  resize(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    const layer = this.#showing.one.layer;
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
    // A place near the border is another one in another size: it is the named one that stays.
    else if (!this.#moved) this.#view = this.#placed(viewports.resized(before, plot));
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
    this.#showing.close();
    this.#pictures.clear();
    this.element.remove();
  }

  painted(): Painted | null {
    const scene = this.#scene();
    return scene && { ...scene.drawing, scale: scene.scale };
  }

  paintOn(surface: Surface, theme: Theme): void {
    const scene = this.#scene();
    if (scene) paintScene(surface, { ...scene, theme, hover: null, rubber: null, still: true });
  }

  /** Of the keys of a text that opens fully labelled; until they are there, as it was. */
  #longestName(): number {
    const layer = this.#showing.one.layer;
    if (!layer?.texts || layer.keys >= viewports.OPENS_LABELLED_BELOW) return Infinity;
    const names = this.options.tokens("key", 0, layer.keys);
    return names ? Math.max(...names.map((name) => visible(name).length)) : this.#longest;
  }

  #recolour(): void {
    const scale = this.#showing.scale(this.#state);
    if (sameScale(this.#colours, scale)) return;
    this.#colours = scale;
    this.#pictures.setLookup(lookup(this.#colours));
  }

  get #mode(): Mode {
    return this.#showing.mode(this.#state);
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
    if (cell) this.#wantCell(cell);
    if (before?.query !== cell?.query || before?.key !== cell?.key) this.on.hovered(this.hover);
    if (before || cell) this.#changed(false);
  }

  /** Beside the middle of the pair, for there is no pointer. */
  #marked(view: Viewport): Scene["hover"] {
    const { plot } = this.#layout;
    if (!this.#pointed) return null;
    const { query, key } = this.#pointed;
    const [x, y] = [plot.left + (key + 0.5 - view.key) * view.zoom, plot.top + (query + 0.5 - view.query) * view.zoom];
    return inside(plot, x, y) ? { query, key, x, y } : null;
  }

  #wantCell({ query, key }: Cell): void {
    this.#showing.data.wantCells({ query: [query, query + 1], key: [key, key + 1] });
  }

  #click(at: Point): void {
    const { plot } = this.#layout;
    if (inside(plot, at.x, at.y)) {
      const cell = this.#cellAt(at);
      if (cell) this.on.picked(this.#showing.pairIn(cell));
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
    if (!view || this.element.clientWidth === 0) return;
    if (devicePixelRatio !== this.#scale) return this.resize();
    if (this.#moved) this.#tell(view);
    this.#showing.data.want(view, this.#mode, this.#fresh);
    this.#fresh = false;
    if (view.zoom >= VALUES_FROM) this.#showing.data.wantCells(viewports.visibleRange(view));
    const scene = this.#scene();
    if (!scene) return;
    if (this.#heatChanged) paintHeat(surfaceOf(this.#heat, this.#scale), scene, { ...this.#layout.plot, left: 0, top: 0 });
    const overlay = surfaceOf(this.#overlay, this.#scale);
    overlay.context.clearRect(0, 0, overlay.width, overlay.height);
    paintOverlay(overlay, scene);
    this.#heatChanged = false;
    this.#report(scene);
  }

  #scene(): Scene | null {
    const view = this.#view;
    if (!view || !this.#colours) return null;
    const [data, mode] = [this.#showing.data, this.#mode];
    return {
      layout: this.#layout,
      theme: this.options.host.theme() === "dark" ? dark : light,
      view,
      data,
      role: this.#role,
      drawing: data.drawing(view, mode),
      pictures: this.#pictures,
      scale: this.#colours,
      mode,
      hideSink: this.#state.hideSink,
      pinQuery: this.#state.pinQuery,
      pinKey: this.#state.pinKey,
      hover: this.#hover ?? this.#marked(view),
      rubber: this.#rubber,
      still: false,
      text: (side, position) => this.options.tokens(side, position, position + 1)?.[0],
    };
  }

  #tell(view: Viewport): void {
    this.#moved = false;
    const opened = viewports.opening(view.queries, view.keys, view);
    const home = view.zoom === opened.zoom && view.query === opened.query && view.key === opened.key;
    this.#told = home ? OPENING : { centre: viewports.centreOf(view), zoom: view.zoom };
    this.on.moved(this.#told.centre, this.#told.zoom);
  }

  /** Says on the element what is drawn, and to whom it may concern that a real heatmap is. */
  #report(scene: Scene): void {
    const { pieces } = scene.drawing;
    const whole = pieces.length > 0 && pieces.every((piece) => piece.state === "drawn" || piece.state === "masked");
    const partial = pieces.some((piece) => piece.tile?.partial);
    const state = !whole ? "loading" : partial ? "preview" : "ready";
    if (this.element.dataset["state"] === state) return;
    this.element.dataset["state"] = state;
    if (state === "ready") this.on.drawn?.();
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
