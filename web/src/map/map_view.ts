// The map of one head: two canvases, pointer input, and a loop that draws only after changes.
//
// In: a head, and the state. Out: events for what the user does; the view it moved to. Everything drawn comes from the state and the data.
// Moves are instant: nothing is animated.
import { addCanvas, getPixelScale, getSurface, resizeCanvas } from "../paint/canvas";
import { isSameScale, type ColourScale } from "../paint/colour";
import { paintHeatmap, paintOverlay, paintScene, type ComparisonRole, type MapScene } from "./map_scene";
import type { Host } from "../host";
import type { Reading, TileDrawing, WeightedSpan } from "./map_data";
import { ALL_PARTS, computeLayout, type MapLayout } from "./map_layout";
import { getMinimapZoom, isMinimapShown } from "../paint/minimap";
import { VALUES_FROM_ZOOM } from "../paint/overlays";
import { contains, type Box } from "../geometry/box";
import { themes, type Surface, type Theme } from "../paint/surface";
import { formatTitle, formatToken } from "../paint/token_text";
import type { PictureCache } from "../tiles/pictures";
import { TileImages } from "../tiles/tile_images";
import { listenToPointer, type GestureHandlers, type Point } from "./pointer";
import { HeadData } from "./head_data";
import { getHeadNumber, type Meta, type Side, type TraceHead } from "../server/protocol";
import { ShownHeads, type Cell, type SecondHead } from "./shown_heads";
import { DEFAULT_STATE, type ChannelMode, type HistoryMode, type State } from "../state";
import type { ZoomPlan } from "../geometry/zoom_plan";
import type { Transport } from "../server/transport";
import * as viewports from "../geometry/viewport";
import type { PinnedPair, Plot, ViewPlace, Viewport } from "../geometry/viewport";

export type { Cell, Point, Reading, ComparisonRole, SecondHead, WeightedSpan };

export interface MapEvents {
  /** Once a frame after moves; "replace" when the map moved by itself, to show the pins. No centre and no zoom: the whole matrix. */
  onMove(place: ViewPlace, how: HistoryMode): void;
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
  /** Shown under tiles that are loading. */
  readonly pictures: PictureCache;
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
  /** Where the view is; null while there is none. */
  getPlace(): ViewPlace | null;
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
  /** The picture as values, without navigation aids; null while there is none. */
  getScene(): MapScene | null;
  /** The same part of another head of the same shape, once its tiles are loaded; valid until the signal is aborted. */
  loadScene(head: TraceHead, signal: AbortSignal): Promise<MapScene>;
  resize(): void;
  destroy(): void;
}

/** What a colour of a picture stands for. */
export type ColourMeaning = Pick<TileDrawing, "stride" | "channel"> & { readonly scale: ColourScale };

const WHOLE: ViewPlace = { centre: null, zoom: null };
/** The names of keys of a shorter text are measured, to leave room for them. */
const SHORT_TEXT = 200;

export class CanvasMap implements MapView {
  readonly element = document.createElement("div");
  readonly #heatCanvas: HTMLCanvasElement;
  readonly #overlayCanvas: HTMLCanvasElement;
  readonly #heads: ShownHeads;
  #role: ComparisonRole | null = null;
  readonly #pictures = new TileImages();
  readonly #previewImages = new TileImages();
  readonly #stop = new AbortController();
  readonly #observer: ResizeObserver;
  #state: State = DEFAULT_STATE;
  #layout: MapLayout = computeLayout(0, 0, { queries: 1, keys: 1, has_texts: true });
  #longestLabel = Infinity;
  #view: Viewport | null = null;
  /** The place that the state had last or that was reported last: only another one moves the view. */
  #lastPlace: ViewPlace = WHOLE;
  /** The pins that the map has been drawn with. */
  #drawnPins: PinnedPair = { query: null, key: null };
  #colours: ColourScale | null = null;
  /** The matrix that the colours are for: relative to uniform attention, they depend on its shape. */
  #coloured: ZoomPlan | null = null;
  #hover: { query: number; key: number; x: number; y: number } | null = null;
  /** A pair that is hovered on another map. */
  #highlighted: Cell | null = null;
  #selectionBox: Box | null = null;
  #frame = 0;
  #isHeatStale = true;
  #hasMoved = false;
  /** The map has moved without the user. */
  #isOwnMove = false;
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
    this.#heads = new ShownHeads(transport, () => this.#onData(), options.pictures);
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
    this.#coloured = null;
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
      this.#lastPlace = WHOLE;
      this.resize();
    }
    this.#requestNow = true;
    this.#coloured = null;
    this.#scheduleDraw(true);
  }

  update(state: State): void {
    this.#state = state;
    if (this.#view && this.#longestLabel !== this.#findLongestLabel()) this.resize();
    if (this.#view && !isSamePlace(state, this.#lastPlace, this.#view)) {
      this.#lastPlace = { centre: state.centre, zoom: state.zoom };
      this.#view = viewports.placeView(this.#view, this.#lastPlace, null);
      this.#revealNewPins(this.#view, this.#lastPlace);
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

  getPlace(): ViewPlace | null {
    return this.#view && { centre: viewports.getCentre(this.#view), zoom: this.#view.zoom };
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
    this.#scale = getPixelScale(this.element);
    const { plot } = this.#layout;
    resizeCanvas(this.#heatCanvas, plot, this.#scale);
    resizeCanvas(this.#overlayCanvas, { left: 0, top: 0, width, height }, this.#scale);
    if (!this.#view) this.#lastPlace = { centre: this.#state.centre, zoom: this.#state.zoom };
    // Near the border a resize changes the place, so place the view again.
    const place = (this.#hasMoved && this.getPlace()) || this.#lastPlace;
    const size = { queries: layer.queries, keys: layer.keys, width: plot.width, height: plot.height };
    const { pinQuery, pinKey } = this.#state;
    const showedPins = this.#view !== null && viewports.showsCell(this.#view, pinQuery, pinKey);
    this.#view = viewports.placeView(size, place, null);
    this.#revealNewPins(size, place, showedPins);
    this.#scheduleDraw(true);
    // A canvas whose size is set is blank: draw before the browser shows it. The store is told in the next frame.
    this.#draw(false);
  }

  /** Bring into view the pins of an opened address, and those that were set while the map was hidden; `again`: also others. */
  #revealNewPins(size: Plot, place: ViewPlace, again = false): void {
    const { pinQuery: query, pinKey: key } = this.#state;
    if (!again && query === this.#drawnPins.query && key === this.#drawnPins.key) return;
    const view = viewports.placeView(size, place, { query, key });
    if (view.query === this.#view?.query && view.key === this.#view.key) return;
    this.#view = view;
    this.#hasMoved = true;
    this.#isOwnMove = true;
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
    const scene = this.getScene();
    if (scene) paintScene(surface, { ...scene, theme });
  }

  getScene(): MapScene | null {
    const scene = this.#createScene();
    return scene && { ...scene, hover: null, selectionBox: null, isExport: true };
  }

  async loadScene({ meta, layer, head }: TraceHead, signal: AbortSignal): Promise<MapScene> {
    const data = new HeadData(this.#heads.transport, () => undefined, this.options.pictures);
    signal.addEventListener("abort", () => data.close());
    data.setHead(meta, layer, head);
    for (;;) {
      const scene = this.getScene();
      if (!scene) throw new Error("There is no map to draw it like.");
      const { view, mode } = scene;
      data.requestTiles(view, mode, false);
      const drawing = data.getDrawing(view, mode);
      const evicted = data.getEvicted(scene.eviction);
      if (data.evictions.problem) throw new Error(data.evictions.problem);
      if (isWhole(drawing) && (evicted !== null) === (scene.evicted !== null)) return { ...scene, data, drawing, evicted, role: null };
      await new Promise((resolve) => setTimeout(resolve, 50));
      signal.throwIfAborted();
    }
  }

  /** The longest key label of a short text; unchanged while texts are loading. */
  #findLongestLabel(): number {
    const layer = this.#heads.first.layer;
    if (!layer?.has_texts || layer.keys >= SHORT_TEXT) return Infinity;
    const names = this.options.getTokens("key", 0, layer.keys);
    return names ? Math.max(...names.map((name) => formatToken(name).length)) : this.#longestLabel;
  }

  #updateColours(): void {
    const { data } = this.#heads;
    const stride = this.#view ? data.plan.getStride(data.chooseLevel(this.#view, this.#mode)) : 1;
    const scale = this.#heads.getScale(this.#state, stride);
    if (isSameScale(this.#colours, scale) && this.#coloured === data.plan) return;
    this.#colours = scale;
    this.#coloured = data.plan;
    this.#pictures.setColours(this.#heads.getTileColours(scale));
    this.#previewImages.setColours(this.#heads.getPreviewColours(scale));
  }

  get #mode(): ChannelMode {
    return this.#heads.getMode(this.#state);
  }

  #move(view: Viewport): void {
    this.#view = view;
    this.#hasMoved = true;
    this.#isOwnMove = false;
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

  #draw(reportsMoves = true): void {
    if (reportsMoves || !this.#hasMoved) {
      cancelAnimationFrame(this.#frame);
      this.#frame = 0;
    }
    const view = this.#view;
    if (!view || this.element.clientWidth === 0) return;
    if (getPixelScale(this.element) !== this.#scale) return this.resize();
    if (this.#hasMoved && reportsMoves) this.#reportMove(view);
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
    this.#drawnPins = { query: this.#state.pinQuery, key: this.#state.pinKey };
    this.#reportState(scene);
  }

  #createScene(): MapScene | null {
    const view = this.#view;
    if (!view) return null;
    this.#updateColours();
    if (!this.#colours) return null;
    const [data, mode] = [this.#heads.data, this.#mode];
    return {
      layout: this.#layout,
      theme: themes[this.options.host.getTheme()],
      view,
      data,
      role: this.#role,
      drawing: data.getDrawing(view, mode),
      images: this.#pictures,
      preview: data.preview && { image: this.#previewImages.getImage(data.preview), rows: data.preview.rows, columns: data.preview.columns },
      scale: this.#colours,
      mode,
      hideSink: this.#state.hideSink,
      eviction: this.#state.eviction,
      evicted: data.getEvicted(this.#state.eviction),
      pinQuery: this.#state.pinQuery,
      pinKey: this.#state.pinKey,
      pinQueryEnd: this.#state.pinQueryEnd,
      pinKeyEnd: this.#state.pinKeyEnd,
      hover: this.#hover ?? this.#locateHighlight(view),
      selectionBox: this.#selectionBox,
      isExport: false,
      isMaskBlank: false,
      parts: { ...ALL_PARTS, tags: true, names: true },
      text: (side, position) => this.options.getTokens(side, position, position + 1)?.[0],
    };
  }

  #reportMove(view: Viewport): void {
    this.#hasMoved = false;
    const whole = viewports.fitView(view);
    const isWhole = view.zoom === whole.zoom && view.query === whole.query && view.key === whole.key;
    this.#lastPlace = isWhole ? WHOLE : { centre: viewports.getCentre(view), zoom: view.zoom };
    this.on.onMove(this.#lastPlace, this.#isOwnMove ? "replace" : "push");
  }

  /** Set `data-state` of the element, and report when the heatmap is complete. */
  #reportState(scene: MapScene): void {
    const partial = scene.drawing.placements.some((placement) => placement.tile?.partial);
    const drawn = partial ? "preview" : "ready";
    const state = isWhole(scene.drawing) ? drawn : scene.preview ? "thumbnail" : "loading";
    if (this.element.dataset["state"] === state) return;
    this.element.dataset["state"] = state;
    if (state === "ready") this.on.onDrawn?.();
  }
}

/** Whether everything in view is loaded. */
function isWhole({ placements }: TileDrawing): boolean {
  return placements.length > 0 && placements.every(({ state }) => state === "drawn" || state === "masked");
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
