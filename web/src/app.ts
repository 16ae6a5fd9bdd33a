/**
 * The explorer: its parts, their places, and one rule, that everything on the page follows the store.
 *
 * In: an element, a transport, what the server said of itself. Out: a running page.
 * Does not know: pixels (the map does), HTTP (the transport does), what a panel says (the panel does).
 */

import { createAblation, type Ablation } from "./heads/ablation_panel";
import { followAddress, type Address } from "./address";
import { Centre } from "./panels/centre_panel";
import { commandsOf, type Commanded } from "./key_handlers";
import { createCompare } from "./compare/compare";
import { createDeeds, heldBy, noSentence, type Deeds } from "./app_commands";
import { watched } from "./server/connection";
import { element, replaceChildren } from "./panels/dom";
import { createFinder, type Finder } from "./panels/finder";
import { createHelp, type Help } from "./panels/help_dialog";
import { createHeadsView } from "./heads/heads_view";
import { report, type Host } from "./host";
import { Latest, told } from "./server/requests";
import { Inspector, type Shown } from "./panels/inspector";
import { enableKeys, keysEnabled, listenForKeys, movesMap } from "./keys";
import { createLiveRegion, spokenCell } from "./panels/live_region";
import type { Cell, MapView } from "./map/map_view";
import { createMap, createTwin, type Mapping } from "./map_factory";
import { createBanner, createNotice } from "./panels/messages";
import { createNavigator } from "./panels/navigator";
import { Pins } from "./pins";
import { headName, paths, type Layer, type Meta, type Session, type Side } from "./server/protocol";
import { SentenceView } from "./panels/sentence_view";
import { fitted, sameState, type State, type Store } from "./state";
import { StrongestTable } from "./panels/strongest_table";
import { createTextView } from "./text/text_view";
import { createToolbar } from "./panels/toolbar";
import { Views } from "./panels/view_switcher";
import type { Comparison, ViewContext } from "./panels/view_context";
import { title } from "./paint/token_text";
import { Tour } from "./tour/tour";
import { Traces } from "./server/trace_cache";
import { aborted, Refused, type Transport } from "./server/transport";

/** Tests read these; nothing else does. */
interface Hooks {
  attnscope?: { readonly map: MapView; readonly store: Store; readonly transport: Transport };
}

export interface Setting {
  readonly root: HTMLElement & Hooks;
  readonly host: Host;
  readonly session: Session;
  readonly store: Store;
  /** Aborted when the explorer leaves the page. */
  readonly signal: AbortSignal;
}

const SINK_PAUSE = 300;

export class App {
  readonly #transport: Transport;
  readonly #traces: Traces;
  readonly #latest = new Latest();
  readonly #live;
  readonly #notice;
  readonly #banner;
  readonly #mapping: Mapping;
  readonly #map: MapView;
  readonly #pins: Pins;
  readonly #context: ViewContext;
  readonly #comparison: Comparison;
  readonly #views: Views;
  readonly #deeds: Deeds;
  readonly #tour: Tour;
  readonly #navigator;
  readonly #toolbar;
  readonly #finder: Finder;
  readonly #ablation: Ablation;
  readonly #inspector: Inspector;
  readonly #table: StrongestTable;
  readonly #sentence: SentenceView;
  readonly #help: Help;
  readonly #address: Address;
  readonly #centre: Centre;
  #shown: Shown | null = null;
  #keys = keysEnabled();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly setting: Setting,
    plain: Transport,
    first: Meta | null,
  ) {
    const { root, host, session, store, signal } = setting;
    this.#live = createLiveRegion(signal);
    this.#notice = createNotice(signal);
    this.#banner = createBanner(host, async () => {
      await plain.json<Session>(paths.session(), signal);
      this.#banner.hide();
      // As if it had never been shown: all that was not answered is asked anew.
      this.#shown = null;
      this.#inspector.show(null, null, null);
      this.#render(store.get(), null);
    });
    this.#transport = watched(
      plain,
      () => this.#banner.show(),
      () => this.#banner.hide(),
      signal,
    );
    this.#traces = new Traces(this.#transport, () => this.#named(), first);
    this.#mapping = {
      ...{ store, host, transport: this.#transport, traces: this.#traces },
      pins: () => this.#pins,
      hovered: (cell) => this.#hovered(cell),
      drawn: () => this.#drawn(),
    };
    this.#map = createMap(this.#mapping, () => this.#shown?.meta);
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
      notice: (text) => this.#notice.show(text),
      say: (text, before) => this.#live.say(text, before),
    };
    this.#comparison = createCompare(this.#context, this.#map);
    this.#views = new Views({
      text: () => createTextView(this.#context),
      heads: () => createHeadsView(this.#context),
    });
    this.#finder = this.#createFinder();
    this.#deeds = createDeeds({
      ...{ root, context: this.#context, map: this.#map, comparison: this.#comparison },
      shown: () => this.#shown,
      table: () => this.#table,
      help: () => this.#help,
      copyAddress: () => this.#address.copy(),
      changed: () => this.#update(store.get()),
    });
    this.#toolbar = createToolbar(store, this.#deeds, this.#finder.element, session.survey);
    this.#navigator = createNavigator(heldBy(session), (layer, head) => store.set({ layer, head }, "push"));
    this.#ablation = createAblation(this.#context);
    this.#inspector = this.#createInspector();
    this.#table = this.#createTable();
    this.#sentence = this.#createSentence();
    this.#tour = new Tour(this.#context, root);
    const keys = (enabled: boolean): void => {
      this.#keys = enabled;
      enableKeys(enabled);
    };
    const tour = this.#tour.possible ? () => this.#tour.start() : null;
    this.#help = createHelp(host, this.#keys, keys, tour);
    this.#centre = this.#createCentre();
    this.#address = followAddress(store, host.place);
    this.#fill(root);
    this.#listen();
    this.#render(store.get(), null);
    this.#address.flush();
    if (!first) this.#sentence.focus();
  }

  #fill(root: HTMLElement & Hooks): void {
    const frame = element(
      "div",
      { class: "frame" },
      this.#banner.element,
      this.#toolbar.element,
      this.#navigator.element,
      this.#centre.element,
      this.#inspector.element,
      this.#help.element,
      this.#live.element,
      this.#tour.card,
      this.#notice.element,
    );
    this.#toolbar.element.append(this.#tour.invitation);
    replaceChildren(root, frame);
    root.attnscope = { map: this.#map, store: this.setting.store, transport: this.#transport };
  }

  /** Everything that lasts is begun here, and ends with the signal. */
  #listen(): void {
    const { root, host, store, signal } = this.setting;
    const commands = commandsOf(this.#commanded());
    listenForKeys({
      ...{ root, signal },
      whole: host.kind !== "notebook",
      enabled: () => this.#keys,
      act: (action) => {
        const view = this.#views.now;
        if (action === "unpin" && this.#tour.running) return (this.#tour.end(), true);
        if (view?.act?.(action)) return true;
        if (view && movesMap(action)) return false;
        commands[action]();
        return true;
      },
    });
    addEventListener("pagehide", () => this.#address.flush(), { signal });
    const leave = store.subscribe((now, before) => this.#render(now, before));
    // Another size is another view: the table is of what is in it.
    const observer = new ResizeObserver(() => this.#table.refresh(this.#shown));
    observer.observe(this.#map.element);
    signal.addEventListener("abort", () => {
      leave();
      observer.disconnect();
      clearTimeout(this.#timer);
      this.#latest.stop();
      this.#address.close();
      this.#finder.reset();
      this.#table.setOpen(false);
      this.#map.destroy();
      delete root.attnscope;
    });
  }

  /** Everything on the page follows the state; `before` is null when all of it is new. */
  #render(state: State, before: State | null): void {
    const viewChanged = state.view !== before?.view;
    if (viewChanged) {
      if (state.view !== "map") this.#comparison.leave();
      this.#views.choose(state.view);
      this.setting.root.dataset["view"] = state.view;
      this.#arrange(state);
    }
    const known = this.#traces.known(state.trace, state.whatIf);
    if (state.trace !== before?.trace || state.whatIf !== before.whatIf) void this.#open(state);
    else if (known) this.#draw(state, known, viewChanged);
    if (!known) this.#update(state);
  }

  #draw(state: State, meta: Meta, resized: boolean): void {
    const possible = fitted(state, meta.layers, heldBy(this.setting.session));
    if (!sameState(possible, state)) return this.setting.store.set(possible);
    const { layer, head } = state;
    // The state first: a new head is then drawn in its place and colours at once.
    this.#map.update(state);
    if (this.#shown?.meta !== meta || this.#shown.layer !== layer || this.#shown.head !== head) {
      this.#shown = { meta, layer, head };
      this.#finder.reset();
      this.#map.setHead(meta, layer, head);
      if (this.setting.host.kind !== "notebook")
        document.title = `${headName(meta, layer, head)} ${title(meta.name)} - AttnScope`;
    }
    if (state.view === "map") this.#comparison.update(state, this.#shown);
    if (resized) this.#map.resize();
    this.#sentence.update(state);
    this.#offerText(state);
    this.#table.refresh(this.#shown);
    this.#update(state);
  }

  #update(state: State): void {
    const sinkShare = state.hideSink ? this.#map.sinkShare() : null;
    clearTimeout(this.#timer);
    // The share is known once its column has been read, which no event tells.
    if (state.hideSink && this.#shown && sinkShare === null)
      this.#timer = setTimeout(() => this.#update(this.setting.store.get()), SINK_PAUSE);
    const shown = this.#belongs(state) ? this.#shown : null;
    const meta = shown?.meta ?? null;
    const { session } = this.setting;
    const { model, example } = session;
    this.#toolbar.update(state, { meta, noSentence: noSentence(session), sinkShare, tableOpen: this.#table.open });
    // The model on stage has read everything but the example.
    this.#navigator.show(meta, state.layer, state.head, (state.trace !== example && model) || (meta?.model ?? ""));
    const view = this.#views.now;
    // Beside another view than the map the inspector tells of the head alone.
    this.#inspector.show(shown, view ? null : state.pinQuery, view ? null : state.pinKey);
    this.#ablation.update(state, shown);
    view?.update(state, shown);
    // Only the map tells when it is drawn.
    if (shown && view) this.#drawn();
  }

  #drawn(): void {
    const { root, host } = this.setting;
    if (root.dataset["state"] === "ready") return;
    report(root, host, "ready");
    performance.mark("first-heatmap");
  }

  #arrange(state: State): void {
    const tokens = this.#traces.known(state.trace)?.layers[0]?.keys ?? null;
    this.#centre.arrange(state, this.#belongs(state) ? tokens : null);
  }

  /** A trace longer than can be typed does not belong under the text box. */
  #belongs(state: State): boolean {
    const keys = this.#traces.known(state.trace)?.layers[0]?.keys;
    return keys !== undefined && (state.view !== "sentence" || keys <= this.setting.session.limit);
  }

  /** Read what the state asks for, then draw whatever the state asks for by then. */
  async #open({ trace, whatIf }: State): Promise<void> {
    const signal = this.#latest.begin();
    if (trace === "") return this.#close();
    const known = this.#traces.known(trace, whatIf);
    if (!known && !this.#shown) this.#centre.say("Opening…");
    try {
      const own = await this.#traces.meta(trace);
      if (signal.aborted) return;
      // A link straight to a what-if is the trace it came from, with the question asked.
      if (own.origin !== null) return this.setting.store.set({ trace: own.origin, whatIf: true });
      if (whatIf && own.what_if === null) return this.setting.store.set({ whatIf: false });
      const meta = whatIf && own.what_if !== null ? await this.#traces.meta(own.what_if) : own;
      if (signal.aborted) return;
      this.#arrange(this.setting.store.get());
      this.#draw(this.setting.store.get(), meta, true);
    } catch (error) {
      if (aborted(error) || signal.aborted) return;
      // A picture of another trace than the address names would be a wrong one.
      this.#close();
      const missing = error instanceof Refused && error.status === 404;
      this.#centre.say(
        missing
          ? `This server does not have the trace ${trace}. Open the folder that holds it with attnscope explore FOLDER.`
          : told(error),
      );
    }
  }

  /** Show no trace. */
  #close(): void {
    this.#shown = null;
    this.#comparison.leave();
    this.#arrange(this.setting.store.get());
    this.#update(this.setting.store.get());
  }

  get #layer(): Layer | undefined {
    return this.#shown?.meta.layers[this.#shown.layer];
  }

  #text(side: Side, position: number): string | undefined {
    if (!this.#shown || !this.#layer?.texts) return undefined;
    return this.#traces.textsOf(this.#shown.meta).get(this.#shown.layer, side, position);
  }

  #offerText(state: State): void {
    const layer = this.#layer;
    if (state.view !== "sentence" || !this.#shown || !layer?.texts || layer.cross || !this.#belongs(state)) return;
    const texts = this.#traces.textsOf(this.#shown.meta).range(this.#shown.layer, "key", 0, layer.keys);
    if (texts) this.#sentence.offer(texts.join(""));
  }

  /** Texts have come for some tokens. */
  #named(): void {
    this.#map.update(this.setting.store.get());
    this.#sentence.update(this.setting.store.get());
    this.#offerText(this.setting.store.get());
    this.#inspector.refreshNames();
    this.#table.refreshNames();
    this.#views.now?.update(this.setting.store.get(), this.#shown);
    if (this.setting.store.get().view === "map") this.#comparison.update(this.setting.store.get(), this.#shown);
  }

  #createFinder(): Finder {
    return createFinder({
      find: (wanted) => this.#traces.find(this.#shown, wanted),
      from: () => this.setting.store.get().pinQuery ?? this.#map.visible().query[0],
      arrive: (position) => this.#pins.jump(position),
      length: () => this.#layer?.queries ?? 0,
      leave: () => this.#focus(),
    });
  }

  #createInspector(): Inspector {
    const actions = {
      pin: (side: Side, position: number) => this.#pins.pin(side, position),
      unpin: (side: Side) => this.#pins.pin(side, null),
      follow: () => this.#pins.follow(),
      back: () => this.#pins.back(),
      canGoBack: () => this.#pins.canGoBack,
      text: (side: Side, position: number) => this.#text(side, position),
      say: (text: string) => this.#live.say(text),
    };
    return new Inspector(this.#transport, actions, this.setting, [this.#ablation.element]);
  }

  #createCentre(): Centre {
    return new Centre({
      map: this.#map.element,
      comparison: this.#comparison,
      sentence: this.#sentence,
      generates: this.setting.session.generates,
      views: this.#views.element,
      table: this.#table.element,
    });
  }

  #createTable(): StrongestTable {
    const actions = {
      text: (side: Side, position: number) => this.#text(side, position),
      pick: (query: number, key: number) => this.#pins.pinCell({ query, key }),
      view: () => this.#map.visible(),
      held: (count: number) => this.#map.strongest(count),
    };
    return new StrongestTable(this.#transport, actions, () => this.#deeds.toggleTable());
  }

  #createSentence(): SentenceView {
    const actions = {
      state: () => this.setting.store.get(),
      ran: (trace: string) => this.#showRun(trace),
      openAsMap: () => this.#deeds.showView("map"),
      meta: (trace: string) => this.#traces.meta(trace),
      createTwin: () => createTwin(this.#mapping),
      say: (text: string) => this.#live.say(text),
    };
    return new SentenceView(this.setting.session, this.#transport, actions, this.setting);
  }

  #commanded(): Commanded {
    return {
      ...{ store: this.setting.store, map: this.#map, pins: this.#pins, finder: this.#finder, deeds: this.#deeds },
      held: heldBy(this.setting.session),
      shown: () => this.#shown,
      focus: () => this.#focus(),
    };
  }

  /** Give the keyboard to what is shown. */
  #focus(): void {
    if (this.setting.store.get().view === "sentence") this.#sentence.focus();
    else (this.#views.now?.element ?? this.#map.element).focus();
  }

  #showRun(trace: string): void {
    this.#pins.forget();
    this.setting.store.set({ trace, centre: null, zoom: null, pinQuery: null, pinKey: null });
  }

  /** Spoken only for those who came by keyboard: a pointer over the map would never be silent. */
  #hovered(cell: Cell | null): void {
    this.#comparison.pointed(cell);
    if (!cell || !this.#map.element.matches(":focus-visible")) return;
    const both = this.#map.saidOfBoth(cell);
    if (both !== null) return this.#live.say(`query ${cell.query}, key ${cell.key}, ${both}`);
    const reading = this.#map.valueAt(cell);
    const texts = { queryText: this.#text("query", cell.query), keyText: this.#text("key", cell.key) };
    this.#live.say(spokenCell({ ...cell, ...texts, value: reading?.value, exact: reading?.exact ?? false }));
  }
}
