/**
 * The explorer: creates its parts and updates them when the store changes.
 *
 * In: an element, a transport and the session. Out: a running page.
 * Pixels belong to the map, HTTP to the transport, and texts to the panels.
 */

import { render } from "preact";
import { createAskBox, type AskBox } from "./ask/ask_box";
import { createAskCommands } from "./ask/ask_commands";
import { createAblationPanel } from "./heads/ablation_panel";
import { syncAddress, type Address } from "./address";
import { canAblate } from "./heads/ablated_heads";
import { CentrePanel } from "./panels/centre_panel";
import { createKeyHandlers, type KeyHandlerContext } from "./key_handlers";
import { HeadComparison } from "./compare/compare";
import { getAvailableHeads } from "./head_order";
import { createAppCommands, explainNoSentence, type AppCommands } from "./app_commands";
import { watchConnection } from "./server/connection";
import { element, replaceChildren } from "./panels/dom";
import { createHelpDialog, type HelpDialog } from "./panels/help_dialog";
import { setLoadState, type Host } from "./host";
import { LaterScript } from "./load_later";
import { orderRequests, type OrderedTransport } from "./server/request_order";
import { LatestRequest } from "./server/requests";
import { Evidence } from "./evidence/evidence";
import { isMapMove, listenForAsk, listenForKeys, loadKeysEnabled, saveKeysEnabled } from "./keys";
import { createLiveRegion, describeCell } from "./panels/live_region";
import type { Cell, MapView } from "./map/map_view";
import { createBaselineMap, createMap, type MapContext } from "./map_factory";
import { createBanner, createNotice } from "./panels/messages";
import { createNavigator } from "./panels/navigator";
import { renderHeadTitle } from "./panels/head_title";
import { renderRanking } from "./panels/ranking_panel";
import { createCellReader } from "./questions/head_cells";
import { HeadRankingStore } from "./questions/head_ranking";
import { OpeningGuide } from "./questions/opening";
import { Pins } from "./pins";
import { formatHeadName, getHome, paths, type Finding, type Layer, type Meta, type Opening, type Session, type Side, type TraceHead } from "./server/protocol";
import { SentenceView } from "./panels/sentence_view";
import { getPinnedLink, withoutRegion } from "./questions/head_question";
import { fitToTrace, isSameState, type State, type Store } from "./state";
import { StrongestTable } from "./panels/strongest_table";
import { createToolbar } from "./panels/toolbar";
import { recordHistory, type UndoHistory } from "./undo";
import { ViewSwitcher } from "./panels/view_switcher";
import type { Comparison, Later, StatePanel, ViewContext } from "./panels/view_context";
import { formatTitle } from "./paint/token_text";
import { Tour } from "./tour/tour";
import { TraceCache } from "./server/trace_cache";
import { PictureCache } from "./tiles/pictures";
import { ResponseError, type Transport } from "./server/transport";

/** Read by tests only. */
interface TestHooks {
  attnscope?: { readonly map: MapView; readonly store: Store; readonly transport: Transport };
}

export interface AppOptions {
  readonly root: HTMLElement & TestHooks;
  readonly host: Host;
  readonly session: Session;
  readonly store: Store;
  /** The head to begin with, if it is known; undefined where the address names one. */
  readonly opening?: Opening | null | undefined;
  /** Load what the first heatmap does not need. */
  readonly loadLater: () => Promise<Later>;
  /** Aborted when the explorer leaves the page. */
  readonly signal: AbortSignal;
}

const SINK_POLL_MILLISECONDS = 300;
/** Other requests wait for the first heatmap, but not longer. */
const FIRST_HEATMAP_MILLISECONDS = 1500;

export class App {
  readonly #ordered: OrderedTransport;
  readonly #transport: Transport;
  readonly #traces: TraceCache;
  readonly #pictures = new PictureCache();
  readonly #metaRequest = new LatestRequest();
  readonly #liveRegion;
  readonly #notice;
  readonly #banner;
  readonly #mapContext: MapContext;
  readonly #map: MapView;
  readonly #pins: Pins;
  readonly #context: ViewContext;
  readonly #later: LaterScript;
  readonly #comparison: Comparison;
  readonly #views: ViewSwitcher;
  readonly #commands: AppCommands;
  readonly #tour: Tour;
  readonly #navigator;
  readonly #toolbar;
  readonly #ask: AskBox;
  readonly #ranking: HeadRankingStore;
  readonly #opening: OpeningGuide;
  readonly #keyHandlers;
  readonly #title = element("div", { class: "head-title" });
  readonly #questionSlot = element("div", { class: "question-slot" });
  readonly #rankingSlot = element("div", { class: "ranking-slot" });
  readonly #ablation: StatePanel;
  readonly #evictionSlot = element("div");
  #eviction: StatePanel | null = null;
  readonly #evidence: Evidence;
  readonly #strongestTable: StrongestTable;
  readonly #sentence: SentenceView;
  readonly #help: HelpDialog;
  readonly #address: Address;
  readonly #history: UndoHistory;
  readonly #centre: CentrePanel;
  #shown: TraceHead | null = null;
  #areKeysEnabled = loadKeysEnabled();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly options: AppOptions,
    rawTransport: Transport,
    firstMeta: Meta | null,
  ) {
    const { root, host, session, store, signal } = options;
    this.#liveRegion = createLiveRegion(signal);
    this.#notice = createNotice(signal);
    this.#banner = createBanner(host, async () => {
      await rawTransport.json<Session>(paths.session(), signal);
      this.#banner.hide();
      // Start over, so that failed requests are sent again.
      this.#views.current?.deactivate();
      this.#shown = null;
      this.#evidence.show({ shown: null, link: null, isFull: true, note: "", ranked: null, found: null });
      this.#render(store.get(), null);
    });
    // Only a map tells when it is drawn.
    this.#ordered = orderRequests(rawTransport, firstMeta && store.get().view === "map" ? FIRST_HEATMAP_MILLISECONDS : 0);
    this.#transport = watchConnection(
      this.#ordered,
      () => this.#banner.show(),
      () => this.#banner.hide(),
      signal,
    );
    this.#traces = new TraceCache(this.#transport, () => this.#onTextsLoaded(), firstMeta);
    this.#mapContext = {
      ...{ store, host, transport: this.#transport, traces: this.#traces, pictures: this.#pictures },
      getPins: () => this.#pins,
      onHover: (cell) => this.#onHover(cell),
      onDrawn: () => this.#reportReady(),
    };
    this.#map = createMap(this.#mapContext, () => this.#shown?.meta);
    this.#pins = new Pins(
      store,
      this.#map,
      () => this.#layer,
      () => this.#evidence.report,
      (text) => this.#notice.show(text),
    );
    this.#context = {
      ...{ store, session, host, signal },
      ...{ transport: this.#transport, traces: this.#traces, pictures: this.#pictures, pins: this.#pins },
      showNotice: (text) => this.#notice.show(text),
      announce: (text, before) => this.#liveRegion.announce(text, before),
    };
    this.#comparison = new HeadComparison(this.#context, this.#map);
    this.#later = new LaterScript(options.loadLater, this.#context);
    this.#views = new ViewSwitcher(
      this.#later,
      {
        text: (later) => later.createTextView(this.#context),
        heads: (later) => later.createHeadsView(this.#context),
        picture: (later) => later.createPictureView(this.#context),
      },
      {
        onLoad: () => this.#updatePanels(store.get()),
        onFailure: () => store.set({ view: "map" }, "replace"),
      },
    );
    this.#ranking = new HeadRankingStore(
      this.#transport,
      getAvailableHeads(session),
      (trace) => this.#traces.getKnown(trace),
      signal,
    );
    this.#opening = new OpeningGuide(this.#transport, options, () => {
      this.#updateHeads();
      if (!this.#opening.isSearching) this.#address.flush();
    });
    this.#ask = this.#createAsk();
    this.#history = recordHistory(store);
    this.#commands = createAppCommands({
      ...{ root, context: this.#context, map: this.#map, comparison: this.#comparison, history: this.#history, later: this.#later },
      getShown: () => this.#shown,
      getTable: () => this.#strongestTable,
      getHelp: () => this.#help,
      copyLink: (place) => this.#address.copyLink(place),
      onTableToggle: () => this.#updatePanels(store.get()),
    });
    this.#keyHandlers = createKeyHandlers(this.#createKeyHandlerContext());
    this.#toolbar = createToolbar(store, this.#commands, this.#ask.element, getHome(session), signal);
    this.#navigator = createNavigator(
      getAvailableHeads(session),
      (layer, head) => store.set({ layer, head }, "push"),
      this.#questionSlot,
      this.#rankingSlot,
      signal,
    );
    this.#ranking.subscribe(() => this.#updateHeads());
    this.#ablation = createAblationPanel(this.#context);
    this.#evidence = this.#createEvidence();
    this.#strongestTable = this.#createTable();
    this.#sentence = this.#createSentence();
    this.#tour = new Tour(this.#context, root);
    const setKeysEnabled = (enabled: boolean): void => {
      this.#areKeysEnabled = enabled;
      saveKeysEnabled(enabled);
    };
    const tour = this.#tour.isPossible ? () => this.#tour.start() : null;
    this.#help = createHelpDialog(host, this.#areKeysEnabled, setKeysEnabled, tour);
    this.#centre = this.#createCentre();
    this.#address = syncAddress(store, host.addressBar);
    this.#mount(root);
    this.#attachListeners();
    this.#render(store.get(), null);
    // Until a head is chosen, the address names none.
    if (!this.#opening.isSearching || options.opening?.opening) this.#address.flush();
    if (!firstMeta) this.#sentence.focus();
  }

  #mount(root: HTMLElement & TestHooks): void {
    const frame = element(
      "div",
      { class: "frame" },
      this.#banner.element,
      this.#toolbar.element,
      this.#navigator.element,
      this.#centre.element,
      this.#evidence.element,
      this.#help.element,
      this.#liveRegion.element,
      this.#tour.card,
      this.#notice.element,
    );
    this.#toolbar.element.append(this.#tour.invitation);
    replaceChildren(root, frame);
    root.attnscope = { map: this.#map, store: this.options.store, transport: this.#transport };
  }

  /** Listeners that last until the signal is aborted. */
  #attachListeners(): void {
    const { root, host, store, signal } = this.options;
    const wholePage = host.kind !== "notebook";
    listenForAsk(root, wholePage, signal, () => this.#ask.focus());
    listenForKeys({
      ...{ root, signal, wholePage },
      isEnabled: () => this.#areKeysEnabled,
      handle: (action) => {
        const view = this.#views.current;
        if (action === "unpin" && this.#tour.isRunning) return (this.#tour.end(), true);
        if (view?.handleAction?.(action)) return true;
        if (view && isMapMove(action)) return false;
        this.#keyHandlers[action]();
        return true;
      },
    });
    addEventListener("pagehide", () => this.#address.flush(), { signal });
    const leave = store.subscribe((now, before) => this.#render(now, before));
    // The table lists what is in view, which depends on the size.
    const observer = new ResizeObserver(() => this.#strongestTable.refresh(this.#shown));
    observer.observe(this.#map.element);
    signal.addEventListener("abort", () => {
      leave();
      observer.disconnect();
      clearTimeout(this.#timer);
      this.#metaRequest.cancel();
      this.#address.close();
      render(null, this.#title);
      render(null, this.#questionSlot);
      render(null, this.#rankingSlot);
      this.#history.close();
      this.#strongestTable.setOpen(false);
      this.#map.destroy();
      delete root.attnscope;
    });
  }

  /** Update everything that depends on what changed; `before` is null on the first call. */
  #render(state: State, before: State | null): void {
    const viewChanged = state.view !== before?.view;
    this.options.root.dataset["large"] = String(state.large);
    if (viewChanged) {
      if (state.view !== "map") this.#comparison.deactivate();
      this.#views.show(state.view);
      this.options.root.dataset["view"] = state.view;
      this.#arrangeCentre(state);
    }
    const known = this.#traces.getKnown(state.trace, state.unmasked);
    if (state.trace !== before?.trace || state.unmasked !== before.unmasked) this.#openTrace(state);
    else if (known) this.#showTrace(state, known, viewChanged);
    if (!known) this.#updatePanels(state);
  }

  #showTrace(state: State, meta: Meta, resized: boolean): void {
    const fitted = fitToTrace(state, meta.layers, getAvailableHeads(this.options.session));
    if (!isSameState(fitted, state)) return this.options.store.set(fitted, "replace");
    const { layer, head } = state;
    // The state first, so that a new head is drawn at once in the right place and colours.
    this.#map.update(state);
    if (this.#shown?.meta !== meta || this.#shown.layer !== layer || this.#shown.head !== head) {
      // A place in another text would be wrong.
      if (this.#shown?.meta !== meta) this.#ask.reset();
      this.#shown = { meta, layer, head };
      this.#map.setHead(meta, layer, head);
      if (this.options.host.kind !== "notebook")
        document.title = `${formatHeadName(meta, layer, head)} ${formatTitle(meta.name)} - AttnScope`;
    }
    if (state.view === "map") this.#comparison.update(state, this.#shown);
    if (resized) this.#map.resize();
    this.#sentence.update(state);
    this.#offerText(state);
    this.#strongestTable.refresh(this.#shown);
    this.#updatePanels(state);
  }

  #updatePanels(state: State): void {
    const sinkShare = state.hideSink ? this.#map.getSinkShare() : null;
    clearTimeout(this.#timer);
    // The share is known once its column is loaded, for which there is no event.
    if (state.hideSink && this.#shown && sinkShare === null)
      this.#timer = setTimeout(() => this.#updatePanels(this.options.store.get()), SINK_POLL_MILLISECONDS);
    const shown = this.#fitsView(state) ? this.#shown : null;
    const meta = shown?.meta ?? null;
    const { session } = this.options;
    const { model, example } = session;
    this.#toolbar.update(state, { meta, sentenceProblem: explainNoSentence(session), sinkShare, isTableOpen: this.#strongestTable.isOpen });
    // All traces but the example come from the model of the session.
    this.#navigator.show(meta, state.layer, state.head, (state.trace !== example && model) || (meta?.model ?? ""));
    this.#ranking.update(state, shown);
    this.#opening.load(shown?.meta.trace ?? "");
    this.#updateHeads();
    const view = this.#views.current;
    this.#ablation.update(state, shown);
    this.#eviction?.update(state, shown);
    view?.update(state, shown);
    // The map reports by itself when it is drawn.
    if (shown && view) this.#reportReady();
  }

  /** The colours of the navigator, the ranking below it and the title above the map. */
  #updateHeads(): void {
    const state = this.options.store.get();
    const shown = this.#fitsView(state) ? this.#shown : null;
    const { question, list } = this.#ranking;
    // Other views than the map list the links of the pins themselves.
    const isFull = !this.#views.current || state.view === "picture";
    this.#evidence.show({ shown, link: withoutRegion(getPinnedLink(state)), isFull, note: state.note, ranked: question.kind === "link" ? list : null, found: this.#findCard(shown) });
    this.#title.hidden = !shown || state.view === "heads";
    if (!shown) return;
    const { store, session } = this.options;
    const getText = (side: Side, position: number): string | undefined => this.#getTokenText(side, position);
    renderHeadTitle(this.#title, {
      ...{ state, shown, ranking: this.#ranking, getText },
      ...{ opening: this.#opening.answer, isSearching: this.#opening.isSearching },
    });
    this.#navigator.paint(createCellReader(this.#ranking));
    renderRanking(this.#questionSlot, this.#rankingSlot, {
      ...{ state, meta: shown.meta, ranking: this.#ranking, opening: this.#opening.answer, canAblate: canAblate(session, state), getText },
      choose: (layer, head) => store.set({ layer, head }, "push"),
      show: (finding) => this.#opening.show(finding),
      set: (change) => store.set(change, "push"),
    });
  }

  #findCard(shown: TraceHead | null): Finding | null {
    return this.#opening.answer?.cards.find(({ layer, head }) => layer === shown?.layer && head === shown.head) ?? null;
  }

  #reportReady(): void {
    const { root, host } = this.options;
    if (root.dataset["state"] === "ready") return;
    setLoadState(root, host, "ready");
    performance.mark("first-heatmap");
    this.#ordered.release();
    this.#later.preload(() => this.#addEviction());
  }

  #addEviction(): void {
    this.#eviction ??= this.#later.loaded?.createEvictionPanel(this.#context) ?? null;
    if (this.#eviction) this.#evictionSlot.replaceWith(this.#eviction.element);
    this.#updatePanels(this.options.store.get());
  }

  #arrangeCentre(state: State): void {
    const tokens = this.#traces.getKnown(state.trace)?.layers[0]?.keys ?? null;
    this.#centre.arrange(state, this.#fitsView(state) ? tokens : null);
  }

  /** The sentence view shows only texts of its own model that are short enough to be typed; the example comes from another model. */
  #fitsView({ view, trace }: State): boolean {
    const { max_tokens, example } = this.options.session;
    const keys = this.#traces.getKnown(trace)?.layers[0]?.keys;
    return keys !== undefined && (view !== "sentence" || (keys <= max_tokens && trace !== example));
  }

  /** Load the trace of the state, then show what the state names by then. */
  #openTrace({ trace, unmasked }: State): void {
    const { store } = this.options;
    this.#metaRequest.cancel();
    if (trace === "") return this.#closeTrace();
    if (!this.#traces.getKnown(trace, unmasked) && !this.#shown) this.#centre.showMessage("Opening…");
    void this.#metaRequest.run(
      async () => {
        const own = await this.#traces.loadMeta(trace);
        const other = unmasked && own.origin === null ? own.unmasked : null;
        return [own, other === null ? own : await this.#traces.loadMeta(other)] as const;
      },
      ([own, meta]) => {
        // A link straight to an unmasked trace opens the trace that it was made from, without its mask.
        if (own.origin !== null) return store.set({ trace: own.origin, unmasked: true }, "replace");
        if (unmasked && own.unmasked === null) return store.set({ unmasked: false }, "replace");
        this.#arrangeCentre(store.get());
        this.#showTrace(store.get(), meta, true);
      },
      (message, error) => {
        // A map of another trace than the address names would be wrong.
        this.#closeTrace();
        const isMissing = error instanceof ResponseError && error.status === 404;
        this.#centre.showMessage(
          isMissing
            ? `This server does not have the trace ${trace}. Open the folder that holds it with attnscope explore FOLDER.`
            : message,
        );
      },
    );
  }

  /** Show no trace. */
  #closeTrace(): void {
    this.#shown = null;
    this.#comparison.deactivate();
    this.#arrangeCentre(this.options.store.get());
    this.#updatePanels(this.options.store.get());
  }

  get #layer(): Layer | undefined {
    return this.#shown?.meta.layers[this.#shown.layer];
  }

  #getTokenText(side: Side, position: number): string | undefined {
    if (!this.#shown || !this.#layer?.has_texts) return undefined;
    return this.#traces.getTexts(this.#shown.meta).get(this.#shown.layer, side, position);
  }

  #offerText(state: State): void {
    const layer = this.#layer;
    if (state.view !== "sentence" || !this.#shown || !layer?.has_texts || layer.cross || !this.#fitsView(state)) return;
    const texts = this.#traces.getTexts(this.#shown.meta).getRange(this.#shown.layer, "key", 0, layer.keys);
    if (texts) this.#sentence.offerText(texts.join(""));
  }

  /** Called when texts of tokens are loaded. */
  #onTextsLoaded(): void {
    this.#map.update(this.options.store.get());
    this.#sentence.update(this.options.store.get());
    this.#offerText(this.options.store.get());
    this.#updateHeads();
    this.#evidence.refreshNames();
    this.#strongestTable.refreshNames();
    this.#views.current?.update(this.options.store.get(), this.#shown);
    if (this.options.store.get().view === "map") this.#comparison.update(this.options.store.get(), this.#shown);
  }

  #createAsk(): AskBox {
    const { store, session, signal } = this.options;
    return createAskBox({
      signal,
      ranking: this.#ranking,
      availableHeads: getAvailableHeads(session),
      find: (side, text, after, backward, cancel) => this.#traces.findToken(this.#shown, side, { text, after, backward, signal: cancel }),
      loadTexts: (side, from, to, cancel) =>
        this.#transport.json<string[]>(paths.tokens(this.#shown?.meta.trace ?? "", this.#shown?.layer ?? 0, side, from, to), cancel),
      getCommands: () => createAskCommands(this.#keyHandlers),
      getShown: () => this.#shown,
      getText: (side, position) => this.#getTokenText(side, position),
      getStart: () => store.get().pinQuery ?? this.#map.visible().query[0],
      openHead: (layer, head) => store.set({ layer, head, view: store.get().view === "heads" ? "map" : store.get().view }, "push"),
      pinLink: (link) => this.#pins.pinLink(link),
      pinSide: (side, positions) => this.#pins.pinSpan(side, positions),
      setLabel: (label) => store.set({ label, question: "auto" }, "push"),
      setFilter: (filter) => store.set({ filter, question: "auto" }, "push"),
      setEviction: (eviction) => store.set({ eviction }, "push"),
      prepare: () => this.#ranking.loadScores(),
      returnFocus: () => this.#focusView(),
      announce: (text) => this.#liveRegion.announce(text),
    });
  }

  #createEvidence(): Evidence {
    const actions = {
      pin: (side: Side, position: number) => this.#pins.pin(side, position),
      unpin: (side: Side) => this.#pins.pin(side, null),
      follow: () => this.#pins.follow(),
      back: () => this.#pins.back(),
      canGoBack: () => this.#pins.canGoBack,
      chooseHead: (layer: number, head: number) => this.options.store.set({ layer, head }, "push"),
      getText: (side: Side, position: number) => this.#getTokenText(side, position),
      announce: (text: string) => this.#liveRegion.announce(text),
    };
    return new Evidence(this.#transport, actions, this.options, [this.#ablation.element, this.#evictionSlot]);
  }

  #createCentre(): CentrePanel {
    return new CentrePanel({
      title: this.#title,
      map: this.#map.element,
      comparison: this.#comparison,
      sentence: this.#sentence,
      can_generate: this.options.session.can_generate,
      views: this.#views.element,
      table: this.#strongestTable.element,
    });
  }

  #createTable(): StrongestTable {
    const actions = {
      getText: (side: Side, position: number) => this.#getTokenText(side, position),
      pinCell: (query: number, key: number) => this.#pins.pinCell({ query, key }),
      getView: () => this.#map.visible(),
      findStrongest: (count: number) => this.#map.findStrongest(count),
    };
    return new StrongestTable(this.#transport, actions, () => this.#commands.toggleTable());
  }

  #createSentence(): SentenceView {
    const actions = {
      getState: () => this.options.store.get(),
      showRun: (trace: string) => this.#showRun(trace),
      chooseHead: (layer: number, head: number) => this.options.store.set({ layer, head }),
      openAsMap: () => this.#commands.showView("map"),
      loadMeta: (trace: string) => this.#traces.loadMeta(trace),
      createBaseline: () => createBaselineMap(this.#mapContext),
      announce: (text: string) => this.#liveRegion.announce(text),
    };
    return new SentenceView(this.options.session, this.#transport, actions, this.options);
  }

  #createKeyHandlerContext(): KeyHandlerContext {
    return {
      ...{ store: this.options.store, map: this.#map, pins: this.#pins, ask: this.#ask, ranking: this.#ranking, commands: this.#commands },
      availableHeads: getAvailableHeads(this.options.session),
      getShown: () => this.#shown,
      focusView: () => this.#focusView(),
    };
  }

  /** Focus the shown view. */
  #focusView(): void {
    const { view } = this.options.store.get();
    if (view === "sentence") this.#sentence.focus();
    else if (view === "map") this.#map.element.focus();
    else this.#later.use(() => this.#views.current?.element.focus());
  }

  #showRun(trace: string): void {
    this.#pins.clearTrail();
    this.options.store.set({ trace, centre: null, zoom: null, textPlace: null, pinQuery: null, pinKey: null }, "replace");
  }

  /** Announce the cell only for keyboard users; with a pointer it would never stop. */
  #onHover(cell: Cell | null): void {
    this.#comparison.onHover(cell);
    if (!cell || !this.#map.element.matches(":focus-visible")) return;
    const both = this.#map.saidOfBoth(cell);
    if (both !== null) return this.#liveRegion.announce(`query ${cell.query}, key ${cell.key}, ${both}`);
    const reading = this.#map.valueAt(cell);
    const texts = { queryText: this.#getTokenText("query", cell.query), keyText: this.#getTokenText("key", cell.key) };
    this.#liveRegion.announce(describeCell({ ...cell, ...texts, value: reading?.value, exact: reading?.exact ?? false }));
  }
}
