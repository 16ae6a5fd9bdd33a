/**
 * The explorer: creates its parts and updates them when the store changes.
 *
 * In: an element, a transport and the session. Out: a running page.
 * Pixels belong to the map, HTTP to the transport, and texts to the panels.
 */

import { createAblationPanel, type AblationPanel } from "./heads/ablation_panel";
import { syncAddress, type Address } from "./address";
import { CentrePanel } from "./panels/centre_panel";
import { createKeyHandlers, type KeyHandlerContext } from "./key_handlers";
import { HeadComparison } from "./compare/compare";
import { getAvailableHeads } from "./head_order";
import { createAppCommands, explainNoSentence, type AppCommands } from "./app_commands";
import { watchConnection } from "./server/connection";
import { element, replaceChildren } from "./panels/dom";
import { createFinder, type Finder } from "./panels/finder";
import { createHelpDialog, type HelpDialog } from "./panels/help_dialog";
import { createHeadsView } from "./heads/heads_view";
import { setLoadState, type Host } from "./host";
import { LatestRequest } from "./server/requests";
import { Inspector } from "./panels/inspector";
import { isMapMove, listenForKeys, loadKeysEnabled, saveKeysEnabled } from "./keys";
import { createLiveRegion, describeCell } from "./panels/live_region";
import type { Cell, MapView } from "./map/map_view";
import { createBaselineMap, createMap, type MapContext } from "./map_factory";
import { createBanner, createNotice } from "./panels/messages";
import { createNavigator } from "./panels/navigator";
import { Pins } from "./pins";
import { formatHeadName, getHome, paths, type Layer, type Meta, type Session, type Side, type TraceHead } from "./server/protocol";
import { SentenceView } from "./panels/sentence_view";
import { fitToTrace, isSameState, type State, type Store } from "./state";
import { StrongestTable } from "./panels/strongest_table";
import { TextView } from "./text/text_view";
import { createToolbar } from "./panels/toolbar";
import { ViewSwitcher } from "./panels/view_switcher";
import type { Comparison, ViewContext } from "./panels/view_context";
import { formatTitle } from "./paint/token_text";
import { Tour } from "./tour/tour";
import { TraceCache } from "./server/trace_cache";
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
  /** Aborted when the explorer leaves the page. */
  readonly signal: AbortSignal;
}

const SINK_POLL_MILLISECONDS = 300;

export class App {
  readonly #transport: Transport;
  readonly #traces: TraceCache;
  readonly #metaRequest = new LatestRequest();
  readonly #liveRegion;
  readonly #notice;
  readonly #banner;
  readonly #mapContext: MapContext;
  readonly #map: MapView;
  readonly #pins: Pins;
  readonly #context: ViewContext;
  readonly #comparison: Comparison;
  readonly #views: ViewSwitcher;
  readonly #commands: AppCommands;
  readonly #tour: Tour;
  readonly #navigator;
  readonly #toolbar;
  readonly #finder: Finder;
  readonly #ablation: AblationPanel;
  readonly #inspector: Inspector;
  readonly #strongestTable: StrongestTable;
  readonly #sentence: SentenceView;
  readonly #help: HelpDialog;
  readonly #address: Address;
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
      this.#shown = null;
      this.#inspector.show(null, null, null);
      this.#render(store.get(), null);
    });
    this.#transport = watchConnection(
      rawTransport,
      () => this.#banner.show(),
      () => this.#banner.hide(),
      signal,
    );
    this.#traces = new TraceCache(this.#transport, () => this.#onTextsLoaded(), firstMeta);
    this.#mapContext = {
      ...{ store, host, transport: this.#transport, traces: this.#traces },
      getPins: () => this.#pins,
      onHover: (cell) => this.#onHover(cell),
      onDrawn: () => this.#reportReady(),
    };
    this.#map = createMap(this.#mapContext, () => this.#shown?.meta);
    this.#pins = new Pins(
      store,
      this.#map,
      () => this.#layer,
      () => this.#inspector.report,
      (text) => this.#notice.show(text),
    );
    this.#context = {
      ...{ store, session, host, signal },
      ...{ transport: this.#transport, traces: this.#traces, pins: this.#pins },
      showNotice: (text) => this.#notice.show(text),
      announce: (text, before) => this.#liveRegion.announce(text, before),
    };
    this.#comparison = new HeadComparison(this.#context, this.#map);
    this.#views = new ViewSwitcher({
      text: () => new TextView(this.#context),
      heads: () => createHeadsView(this.#context),
    });
    this.#finder = this.#createFinder();
    this.#commands = createAppCommands({
      ...{ root, context: this.#context, map: this.#map, comparison: this.#comparison },
      getShown: () => this.#shown,
      getTable: () => this.#strongestTable,
      getHelp: () => this.#help,
      copyLink: () => this.#address.copyLink(),
      onTableToggle: () => this.#updatePanels(store.get()),
    });
    this.#toolbar = createToolbar(store, this.#commands, this.#finder.element, getHome(session));
    this.#navigator = createNavigator(getAvailableHeads(session), (layer, head) => store.set({ layer, head }, "push"));
    this.#ablation = createAblationPanel(this.#context);
    this.#inspector = this.#createInspector();
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
    this.#address.flush();
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
      this.#inspector.element,
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
    const commands = createKeyHandlers(this.#createKeyHandlerContext());
    listenForKeys({
      ...{ root, signal },
      wholePage: host.kind !== "notebook",
      isEnabled: () => this.#areKeysEnabled,
      handle: (action) => {
        const view = this.#views.current;
        if (action === "unpin" && this.#tour.isRunning) return (this.#tour.end(), true);
        if (view?.handleAction?.(action)) return true;
        if (view && isMapMove(action)) return false;
        commands[action]();
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
      this.#finder.reset();
      this.#strongestTable.setOpen(false);
      this.#map.destroy();
      delete root.attnscope;
    });
  }

  /** Update everything that depends on what changed; `before` is null on the first call. */
  #render(state: State, before: State | null): void {
    const viewChanged = state.view !== before?.view;
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
    if (!isSameState(fitted, state)) return this.options.store.set(fitted);
    const { layer, head } = state;
    // The state first, so that a new head is drawn at once in the right place and colours.
    this.#map.update(state);
    if (this.#shown?.meta !== meta || this.#shown.layer !== layer || this.#shown.head !== head) {
      this.#shown = { meta, layer, head };
      this.#finder.reset();
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
    const view = this.#views.current;
    // Next to a view other than the map, the inspector shows only the head.
    this.#inspector.show(shown, view ? null : state.pinQuery, view ? null : state.pinKey);
    this.#ablation.update(state, shown);
    view?.update(state, shown);
    // The map reports by itself when it is drawn.
    if (shown && view) this.#reportReady();
  }

  #reportReady(): void {
    const { root, host } = this.options;
    if (root.dataset["state"] === "ready") return;
    setLoadState(root, host, "ready");
    performance.mark("first-heatmap");
  }

  #arrangeCentre(state: State): void {
    const tokens = this.#traces.getKnown(state.trace)?.layers[0]?.keys ?? null;
    this.#centre.arrange(state, this.#fitsView(state) ? tokens : null);
  }

  /** The sentence view shows only traces that are short enough to be typed. */
  #fitsView(state: State): boolean {
    const keys = this.#traces.getKnown(state.trace)?.layers[0]?.keys;
    return keys !== undefined && (state.view !== "sentence" || keys <= this.options.session.max_tokens);
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
        if (own.origin !== null) return store.set({ trace: own.origin, unmasked: true });
        if (unmasked && own.unmasked === null) return store.set({ unmasked: false });
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
    this.#inspector.refreshNames();
    this.#strongestTable.refreshNames();
    this.#views.current?.update(this.options.store.get(), this.#shown);
    if (this.options.store.get().view === "map") this.#comparison.update(this.options.store.get(), this.#shown);
  }

  #createFinder(): Finder {
    return createFinder({
      find: (wanted) => this.#traces.findToken(this.#shown, wanted),
      getStart: () => this.options.store.get().pinQuery ?? this.#map.visible().query[0],
      goTo: (position) => this.#pins.goToQuery(position),
      getLength: () => this.#layer?.queries ?? 0,
      returnFocus: () => this.#focusView(),
    });
  }

  #createInspector(): Inspector {
    const actions = {
      pin: (side: Side, position: number) => this.#pins.pin(side, position),
      unpin: (side: Side) => this.#pins.pin(side, null),
      follow: () => this.#pins.follow(),
      back: () => this.#pins.back(),
      canGoBack: () => this.#pins.canGoBack,
      getText: (side: Side, position: number) => this.#getTokenText(side, position),
      announce: (text: string) => this.#liveRegion.announce(text),
    };
    return new Inspector(this.#transport, actions, this.options, [this.#ablation.element]);
  }

  #createCentre(): CentrePanel {
    return new CentrePanel({
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
      openAsMap: () => this.#commands.showView("map"),
      loadMeta: (trace: string) => this.#traces.loadMeta(trace),
      createBaseline: () => createBaselineMap(this.#mapContext),
      announce: (text: string) => this.#liveRegion.announce(text),
    };
    return new SentenceView(this.options.session, this.#transport, actions, this.options);
  }

  #createKeyHandlerContext(): KeyHandlerContext {
    return {
      ...{ store: this.options.store, map: this.#map, pins: this.#pins, finder: this.#finder, commands: this.#commands },
      availableHeads: getAvailableHeads(this.options.session),
      getShown: () => this.#shown,
      focusView: () => this.#focusView(),
    };
  }

  /** Focus the shown view. */
  #focusView(): void {
    if (this.options.store.get().view === "sentence") this.#sentence.focus();
    else (this.#views.current?.element ?? this.#map.element).focus();
  }

  #showRun(trace: string): void {
    this.#pins.clearTrail();
    this.options.store.set({ trace, centre: null, zoom: null, pinQuery: null, pinKey: null });
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
