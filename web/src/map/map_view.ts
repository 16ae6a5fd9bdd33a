// The map of one head: two canvases, pointer input, and a loop that draws only after changes.
//
// In: a head, and the state. Out: events for what the user does; the view it moved to. Everything drawn comes from the state and the data.
// Moves are instant: nothing is animated.
import { addCanvas, getSurface, resizeCanvas } from "../paint/canvas";
import { createLookup, isSameScale, type ColourScale } from "../paint/colour";
import { paintHeatmap, paintOverlay, paintScene, type ComparisonRole, type MapScene } from "./map_scene";
import type { Host } from "../host";
import type { Reading, TileDrawing, WeightedSpan } from "./map_data";
import { computeLayout, type MapLayout } from "./map_layout";
import { getMinimapZoom, isMinimapShown } from "../paint/minimap";
import { VALUES_FROM_ZOOM } from "../paint/overlays";
import { contains, type Box } from "../geometry/box";
import { themes, type Surface, type Theme } from "../paint/surface";
import { formatTitle, formatToken } from "../paint/token_text";
import { TileImages } from "../tiles/tile_images";
import { listenToPointer, type GestureHandlers, type Point } from "./pointer";
import { getHeadNumber, type Meta, type Side } from "../server/protocol";
import { ShownHeads, type Cell, type SecondHead } from "./shown_heads";
import { DEFAULT_STATE, type ChannelMode, type State } from "../state";
import type { Transport } from "../server/transport";
import * as viewports from "../geometry/viewport";
import type { Viewport } from "../geometry/viewport";

export type { Cell, Point, Reading, ComparisonRole, SecondHead, WeightedSpan };

export interface MapEvents {
  /** Once a frame after moves by pointer, wheel or method. (null, null) is the opening view ("fit"). */
  onMove(centre: Cell | null, zoom: number | null): void;
  /** Also called again for the same cell when its exact value has arrived. */
  onHover(cell: Cell | null): void;
  onPickCell(cell: Cell): void;
  onPickQuery(query: number): void;
  onPickKey(key: number): void;
  /** Everything in view is drawn, and none of it is a preview. */
  onDrawn?(): void;
}

export interface MapOptions {
  readonly host: Host;
  /** Token texts; undefined while they are loading. Call update() when they are loaded. */
  getTokens(side: Side, from: number, to: number): string[] | undefined;
}

export interface MapView {
  readonly element: HTMLElement;
  /** The pair under the pointer: a query and the key it attends to, on either side of the diagonal. */
  readonly hover: Cell | null;
  /** Draw a second head of the same shape into the picture; null removes it. */
  setSecondHead(other: SecondHead | null): void;
  /** The name of this map in a comparison; null outside of one. */
  setRole(role: ComparisonRole | null): void;
  /** Mark a pair that is hovered on another map. */
  highlightCell(cell: Cell | null): void;
  /** Describes a pair in a picture of two heads; null for one head. */
  saidOfBoth(cell: Cell): string | null;
  setHead(meta: Meta, layer: number, head: number): void;
  /** Draw this state; also used to draw again. */
  update(state: State): void;
  panBy(dxPixels: number, dyPixels: number): void;
  zoomBy(factor: number, at?: Point): void;
  fit(): void;
  showOneTokenPerPixel(): void;
  /** Moves just enough that the pair is in view. */
  reveal(cell: Cell): void;
  /** Half-open token ranges in view. */
  visible(): { query: [number, number]; key: [number, number] };
  valueAt(cell: Cell): Reading | undefined;
  /** The strongest bins in view, as far as tiles are loaded. */
  findStrongest(count: number): WeightedSpan[];
  /** The mean share of the first key over the rows in view; null until known. */
  getSinkShare(): number | null;
  /** Smallest and largest weight of the tiles in view, in bits; null while nothing is loaded. */
  getValueRange(): [number, number] | null;
  /** What a colour stands for now; null while there is no picture. */
  painted(): ColourMeaning | null;
  /** Paint the picture without navigation aids on a surface as large as the element. */
  paintOn(surface: Surface, theme: Theme): void;
  resize(): void;
  destroy(): void;
}

/** What a colour of a picture stands for. */
export type ColourMeaning = Pick<TileDrawing, "stride" | "channel"> & { readonly scale: ColourScale };

interface ViewPlace {
  centre: Cell | null;
  zoom: number | null;
}

const OPENING: ViewPlace = { centre: null, zoom: null };

export class CanvasMap implements MapView {
  readonly element = document.createElement("div");
  readonly #heatCanvas: HTMLCanvasElement;
  readonly #overlayCanvas: HTMLCanvasElement;
  readonly #heads: ShownHeads;
  #role: ComparisonRole | null = null;
  readonly #pictures = new TileImages();
  readonly #stop = new AbortController();
  readonly #observer: ResizeObserver;
  #state: State = DEFAULT_STATE;
  #layout: MapLayout = computeLayout(0, 0, { queries: 1, keys: 1, has_texts: true });
  #longestLabel = Infinity;
  #view: Viewport | null = null;
  /** The place that the state had last or that was reported last: only another one moves the view. */
  #lastPlace: ViewPlace = OPENING;
  #colours: ColourScale | null = null;
  #hover: { query: number; key: number; x: number; y: number } | null = null;
  /** A pair that is hovered on another map. */
  #highlighted: Cell | null = null;
  #selectionBox: Box | null = null;
  #frame = 0;
  #isHeatStale = true;
  #hasMoved = false;
  #scale = 1;
  #requestNow = true;

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
    this.#heatCanvas = addCanvas(element, "map-heat");
    this.#overlayCanvas = addCanvas(element, "map-overlay");
    this.#heads = new ShownHeads(transport, () => this.#onData());
    const gestures: GestureHandlers = {
      pan: (dx, dy) => this.panBy(dx, dy),
      zoom: (factor, at) => this.#zoomAt(factor, at),
      click: (at) => this.#handleClick(at),
      doubleClick: (at) => contains(this.#layout.plot, at.x, at.y) && this.#zoomAt(2, at),
      hover: (at) => this.#hoverAt(at),
      startDrag: (at) => this.#view !== null && isMinimapShown(this.#view) && contains(this.#layout.minimap, at.x, at.y),
      drag: (at) => this.#jumpTo(at),
      drawBox: (from, to) => this.#setSelectionBox(createBoxBetween(from, to)),
      finishBox: (from, to) => this.#finishBox(from, to),
    };
    this.#stop.signal.addEventListener("abort", listenToPointer(element, gestures, options.host.wheelZooms));
    options.host.onThemeChange(() => this.#scheduleDraw(true), this.#stop.signal);
    this.#observer = new ResizeObserver(() => this.resize());
    this.#observer.observe(element);
  }

  get hover(): Cell | null {
    return this.#hover && this.#heads.getPair(this.#hover);
  }

  setSecondHead(other: SecondHead | null): void {
    this.#heads.setSecond(other);
    this.#requestNow = true;
    this.#updateColours();
    this.#scheduleDraw(true);
  }

  setRole(role: ComparisonRole | null): void {
    this.#role = role;
    this.#scheduleDraw(false);
  }

  highlightCell(cell: Cell | null): void {
    this.#highlighted = cell;
    if (cell) this.#requestCell(cell);
    this.#scheduleDraw(false);
  }

  saidOfBoth(cell: Cell): string | null {
    const { query, key } = this.#hover ?? cell;
    return this.#view && (this.#heads.pair?.describeCell(query, key, this.#view, this.#mode).replace("\n", "; ") ?? null);
  }

  setHead(meta: Meta, layer: number, head: number): void {
    const before = this.#heads.first.layer;
    this.#heads.first.setHead(meta, layer, head);
    const about = this.#heads.first.layer;
    this.element.setAttribute("aria-label", `Attention map of ${formatTitle(about?.name ?? "")} head ${getHeadNumber(meta, layer, head)}: rows are queries, columns are keys`);
    if (!before || before.queries !== about?.queries || before.keys !== about.keys || before.has_texts !== about.has_texts) {
      this.#view = null;
      this.#hover = null;
      this.#lastPlace = OPENING;
      this.resize();
    }
    this.#requestNow = true;
    this.#updateColours();
    this.#scheduleDraw(true);
  }

  update(state: State): void {
    this.#state = state;
    this.#updateColours();
    if (this.#view && this.#longestLabel !== this.#findLongestLabel()) this.resize();
    if (this.#view && !isSamePlace(state, this.#lastPlace, this.#view)) {
      this.#lastPlace = { centre: state.centre, zoom: state.zoom };
      this.#view = this.#placeView(this.#view);
    }
    this.#scheduleDraw(true);
  }

  panBy(dx: number, dy: number): void {
    if (this.#view) this.#move(viewports.panView(this.#view, dx, dy));
  }

  zoomBy(factor: number, at?: Point): void {
    const { plot } = this.#layout;
    this.#zoomAt(factor, at ?? { x: plot.left + plot.width / 2, y: plot.top + plot.height / 2 });
  }

  fit(): void {
    if (this.#view) this.#move(viewports.fitView(this.#view));
  }

  showOneTokenPerPixel(): void {
    if (this.#view) this.zoomBy(1 / this.#view.zoom);
  }

  reveal(cell: Cell): void {
    if (this.#view) this.#move(viewports.revealCell(this.#view, cell.query, cell.key));
  }

  visible(): { query: [number, number]; key: [number, number] } {
    if (!this.#view) return { query: [0, 0], key: [0, 0] };
    const { query, key } = viewports.getVisibleRange(this.#view);
    return { query: [...query], key: [...key] };
  }

  valueAt(cell: Cell): Reading | undefined {
    return this.#view ? this.#heads.first.getReading(cell.query, cell.key, this.#view, this.#mode) : undefined;
  }

  findStrongest(count: number): WeightedSpan[] {
    return this.#view ? this.#heads.first.findStrongest(this.#view, this.#mode, count) : [];
  }

  getSinkShare(): number | null {
    return this.#view ? this.#heads.first.getSinkShare(this.#view) : null;
  }

  getValueRange(): [number, number] | null {
    const { isRatio, first, data } = this.#heads;
    return this.#view && (isRatio ? first : data).getValueRange(this.#view, this.#mode);
  }

  resize(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    const layer = this.#heads.first.layer;
    if (width === 0 || height === 0 || !layer) return;
    this.#longestLabel = this.#findLongestLabel();
    this.#layout = computeLayout(width, height, layer, this.#longestLabel);
    this.#scale = devicePixelRatio;
    const { plot } = this.#layout;
    resizeCanvas(this.#heatCanvas, plot, this.#scale);
    resizeCanvas(this.#overlayCanvas, { left: 0, top: 0, width, height }, this.#scale);
    const before = this.#view;
    const opened = viewports.openView(layer.queries, layer.keys, plot);
    if (!before) {
      this.#lastPlace = { centre: this.#state.centre, zoom: this.#state.zoom };
      this.#view = this.#placeView(opened);
    } else if (this.#lastPlace.zoom === null) this.#view = opened;
    // Near the border a resize changes the place, so place the view again.
    else if (!this.#hasMoved) this.#view = this.#placeView(viewports.resizeView(before, plot));
    else {
      const centre = viewports.getCentre(before);
      this.#view = viewports.centreView(viewports.resizeView(before, plot), centre.query, centre.key, before.zoom);
    }
    this.#scheduleDraw(true);
    // A canvas whose size is set is blank: draw before the browser shows it.
    this.#draw();
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#stop.abort();
    this.#heads.close();
    this.#pictures.clear();
    this.element.remove();
  }

  painted(): ColourMeaning | null {
    const scene = this.#createScene();
    return scene && { ...scene.drawing, scale: scene.scale };
  }

  paintOn(surface: Surface, theme: Theme): void {
    const scene = this.#createScene();
    if (scene) paintScene(surface, { ...scene, theme, hover: null, selectionBox: null, isExport: true });
  }

  /** The longest key label of a text that opens fully labelled; unchanged while texts are loading. */
  #findLongestLabel(): number {
    const layer = this.#heads.first.layer;
    if (!layer?.has_texts || layer.keys >= viewports.LABELLED_BELOW_TOKENS) return Infinity;
    const names = this.options.getTokens("key", 0, layer.keys);
    return names ? Math.max(...names.map((name) => formatToken(name).length)) : this.#longestLabel;
  }

  #updateColours(): void {
    const scale = this.#heads.getScale(this.#state);
    if (isSameScale(this.#colours, scale)) return;
    this.#colours = scale;
    this.#pictures.setLookup(createLookup(this.#colours));
  }

  get #mode(): ChannelMode {
    return this.#heads.getMode(this.#state);
  }

  /** The view at the last place. */
  #placeView(view: Viewport): Viewport {
    const { centre, zoom } = this.#lastPlace;
    const opened = viewports.openView(view.queries, view.keys, view);
    if (zoom === null && centre === null) return opened;
    const { query, key } = centre ?? viewports.getCentre(view);
    return viewports.centreView(view, query, key, zoom ?? opened.zoom);
  }

  #move(view: Viewport): void {
    this.#view = view;
    this.#hasMoved = true;
    // The pointer stays, the token under it changes.
    if (this.#hover) this.#hoverAt(this.#hover);
    this.#scheduleDraw(true);
  }

  #zoomAt(factor: number, at: Point): void {
    const { plot } = this.#layout;
    if (this.#view) this.#move(viewports.zoomViewAt(this.#view, this.#view.zoom * factor, at.x - plot.left, at.y - plot.top));
  }

  #jumpTo(at: Point): void {
    const view = this.#view;
    if (!view) return;
    const { minimap } = this.#layout;
    const zoom = getMinimapZoom(minimap, view);
    this.#move(viewports.centreView(view, (at.y - minimap.top) / zoom, (at.x - minimap.left) / zoom, view.zoom));
  }

  #setSelectionBox(box: Box | null): void {
    this.#selectionBox = box;
    this.#scheduleDraw(false);
  }

  #finishBox(from: Point, to: Point | null): void {
    this.#setSelectionBox(null);
    if (!to || !this.#view) return;
    const [{ plot }, box] = [this.#layout, createBoxBetween(from, to)];
    this.#move(viewports.zoomToBox(this.#view, box.left - plot.left, box.top - plot.top, box.width, box.height));
  }

  #findCell(at: Point): Cell | null {
    const { plot } = this.#layout;
    const view = this.#view;
    if (!view) return null;
    const query = Math.floor(view.query + (at.y - plot.top) / view.zoom);
    const key = Math.floor(view.key + (at.x - plot.left) / view.zoom);
    return query >= 0 && key >= 0 && query < view.queries && key < view.keys ? { query, key } : null;
  }

  #hoverAt(at: Point | null): void {
    const cell = at && contains(this.#layout.plot, at.x, at.y) ? this.#findCell(at) : null;
    const before = this.#hover;
    this.#hover = at && cell && { ...cell, x: at.x, y: at.y };
    this.element.style.cursor = cell ? "crosshair" : "default";
    if (cell) this.#requestCell(cell);
    if (before?.query !== cell?.query || before?.key !== cell?.key) this.on.onHover(this.hover);
    if (before || cell) this.#scheduleDraw(false);
  }

  /** At the middle of the pair, since there is no pointer. */
  #locateHighlight(view: Viewport): MapScene["hover"] {
    const { plot } = this.#layout;
    if (!this.#highlighted) return null;
    const { query, key } = this.#highlighted;
    const [x, y] = [plot.left + (key + 0.5 - view.key) * view.zoom, plot.top + (query + 0.5 - view.query) * view.zoom];
    return contains(plot, x, y) ? { query, key, x, y } : null;
  }

  #requestCell({ query, key }: Cell): void {
    this.#heads.data.requestCells({ query: [query, query + 1], key: [key, key + 1] });
  }

  #handleClick(at: Point): void {
    const { plot } = this.#layout;
    if (contains(plot, at.x, at.y)) {
      const cell = this.#findCell(at);
      if (cell) this.on.onPickCell(this.#heads.getPair(cell));
    } else if (at.x < plot.left && at.y >= plot.top && at.y < plot.top + plot.height) {
      const cell = this.#findCell({ x: plot.left, y: at.y });
      if (cell) this.on.onPickQuery(cell.query);
    } else if (at.y < plot.top && at.x >= plot.left && at.x < plot.left + plot.width) {
      const cell = this.#findCell({ x: at.x, y: plot.top });
      if (cell) this.on.onPickKey(cell.key);
    }
  }

  #onData(): void {
    if (this.#hover) this.on.onHover(this.hover);
    this.#scheduleDraw(true);
  }

  #scheduleDraw(heat: boolean): void {
    this.#isHeatStale ||= heat;
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const view = this.#view;
    if (!view || this.element.clientWidth === 0) return;
    if (devicePixelRatio !== this.#scale) return this.resize();
    if (this.#hasMoved) this.#reportMove(view);
    this.#heads.data.requestTiles(view, this.#mode, this.#requestNow);
    this.#requestNow = false;
    if (view.zoom >= VALUES_FROM_ZOOM) this.#heads.data.requestCells(viewports.getVisibleRange(view));
    const scene = this.#createScene();
    if (!scene) return;
    if (this.#isHeatStale) paintHeatmap(getSurface(this.#heatCanvas, this.#scale), scene, { ...this.#layout.plot, left: 0, top: 0 });
    const overlay = getSurface(this.#overlayCanvas, this.#scale);
    overlay.context.clearRect(0, 0, overlay.width, overlay.height);
    paintOverlay(overlay, scene);
    this.#isHeatStale = false;
    this.#reportState(scene);
  }

  #createScene(): MapScene | null {
    const view = this.#view;
    if (!view || !this.#colours) return null;
    const [data, mode] = [this.#heads.data, this.#mode];
    return {
      layout: this.#layout,
      theme: themes[this.options.host.getTheme()],
      view,
      data,
      role: this.#role,
      drawing: data.getDrawing(view, mode),
      images: this.#pictures,
      scale: this.#colours,
      mode,
      hideSink: this.#state.hideSink,
      pinQuery: this.#state.pinQuery,
      pinKey: this.#state.pinKey,
      hover: this.#hover ?? this.#locateHighlight(view),
      selectionBox: this.#selectionBox,
      isExport: false,
      text: (side, position) => this.options.getTokens(side, position, position + 1)?.[0],
    };
  }

  #reportMove(view: Viewport): void {
    this.#hasMoved = false;
    const opened = viewports.openView(view.queries, view.keys, view);
    const home = view.zoom === opened.zoom && view.query === opened.query && view.key === opened.key;
    this.#lastPlace = home ? OPENING : { centre: viewports.getCentre(view), zoom: view.zoom };
    this.on.onMove(this.#lastPlace.centre, this.#lastPlace.zoom);
  }

  /** Set `data-state` of the element, and report when the heatmap is complete. */
  #reportState(scene: MapScene): void {
    const { placements } = scene.drawing;
    const whole = placements.length > 0 && placements.every((placement) => placement.state === "drawn" || placement.state === "masked");
    const partial = placements.some((placement) => placement.tile?.partial);
    const state = !whole ? "loading" : partial ? "preview" : "ready";
    if (this.element.dataset["state"] === state) return;
    this.element.dataset["state"] = state;
    if (state === "ready") this.on.onDrawn?.();
  }
}

function createBoxBetween(one: Point, other: Point): Box {
  return { left: Math.min(one.x, other.x), top: Math.min(one.y, other.y), width: Math.abs(one.x - other.x), height: Math.abs(one.y - other.y) };
}

/** Less than half a pixel apart: an address is rounded, and must not move the view. */
function isSamePlace(state: State, place: ViewPlace, view: Viewport): boolean {
  if ((state.zoom === null) !== (place.zoom === null) || (state.centre === null) !== (place.centre === null)) return false;
  if (state.zoom !== null && place.zoom !== null && Math.abs(state.zoom / place.zoom - 1) > 1e-4) return false;
  if (!state.centre || !place.centre) return true;
  return Math.max(Math.abs(state.centre.query - place.centre.query), Math.abs(state.centre.key - place.centre.key)) * view.zoom < 0.5;
}
