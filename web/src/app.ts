/**
 * The explorer: its parts, their places, and one rule, that everything on the page follows the store.
 *
 * In: an element, a transport, what the server said of itself. Out: a running page.
 * Does not know: pixels (the map does), HTTP (the transport does), what a panel says (the panel does).
 */

import { followAddress, type Address } from "./address";
import { Centre } from "./panels/centre";
import { commandsOf } from "./commands";
import { watched } from "./server/connection";
import { replaceChildren } from "./panels/dom";
import { createFinder, type Finder } from "./panels/finder";
import { createHelp, type Help } from "./panels/help";
import { Latest, told } from "./server/inquiry";
import { Inspector, type Shown } from "./panels/inspector";
import { enableKeys, keysEnabled, listenForKeys } from "./keys";
import { createLiveRegion, describeMap, spokenCell } from "./panels/live_region";
import { createMapView, type Cell, type MapEvents, type MapView } from "./map/map_view";
import { createBanner, createNotice } from "./panels/messages";
import { createNavigator } from "./panels/navigator";
import { Pins } from "./pins";
import { headNumber, paths, type Layer, type Meta, type Session, type Side } from "./server/protocol";
import { SentenceView, type Twin } from "./panels/sentence";
import { fitted, sameState, validRange, type State, type Store, type View } from "./state";
import { StrongestTable } from "./panels/strongest_table";
import { createToolbar } from "./panels/toolbar";
import { title } from "./paint/token_text";
import { Traces } from "./server/traces";
import { aborted, Refused, type Transport } from "./server/transport";

/** Tests read these; nothing else does. */
interface Hooks {
  sightline?: { readonly map: MapView; readonly store: Store; readonly transport: Transport };
}

const SINK_PAUSE = 300;

export class App {
  readonly #transport: Transport;
  readonly #traces: Traces;
  readonly #latest = new Latest();
  readonly #live = createLiveRegion();
  readonly #notice = createNotice();
  readonly #banner;
  readonly #map: MapView;
  readonly #pins: Pins;
  readonly #navigator;
  readonly #toolbar;
  readonly #finder: Finder;
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
    root: HTMLElement & Hooks,
    plain: Transport,
    private readonly session: Session,
    private readonly store: Store,
    first: Meta | null,
  ) {
    this.#banner = createBanner(async () => {
      await plain.json<Session>(paths.session());
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
    );
    this.#traces = new Traces(this.#transport, () => this.#named(), first);
    this.#map = this.#createMap(() => this.#shown?.meta);
    this.#pins = new Pins(
      store,
      this.#map,
      () => this.#layer,
      () => this.#inspector.report,
      (text) => this.#notice.show(text),
    );
    this.#finder = this.#createFinder();
    this.#toolbar = this.#createToolbar();
    this.#navigator = createNavigator((layer, head) => store.set({ layer, head }, "push"));
    this.#inspector = this.#createInspector();
    this.#table = this.#createTable();
    this.#sentence = this.#createSentence();
    this.#help = createHelp(this.#keys, (enabled) => {
      this.#keys = enabled;
      enableKeys(enabled);
    });
    this.#centre = new Centre(this.#map.element, this.#sentence, session.generates, this.#table.element);
    replaceChildren(
      root,
      this.#banner.element,
      this.#toolbar.element,
      this.#navigator.element,
      this.#centre.element,
      this.#inspector.element,
      this.#help.element,
      this.#live.element,
      this.#notice.element,
    );
    root.sightline = { map: this.#map, store, transport: this.#transport };
    this.#address = followAddress(store, window);
    addEventListener("pagehide", () => this.#address.flush());
    store.subscribe((now, before) => this.#render(now, before));
    this.#listenForKeys(root);
    // Another size is another view: the table is of what is in it.
    new ResizeObserver(() => this.#table.refresh(this.#shown)).observe(this.#map.element);
    this.#render(store.get(), null);
    this.#address.flush();
    if (!first) this.#sentence.focus();
  }

  /** Everything on the page follows the state; `before` is null when all of it is new. */
  #render(state: State, before: State | null): void {
    const viewChanged = state.view !== before?.view;
    if (viewChanged) this.#arrange(state);
    const known = this.#traces.known(state.trace, state.whatIf);
    if (state.trace !== before?.trace || state.whatIf !== before.whatIf) void this.#open(state);
    else if (known) this.#draw(state, known, viewChanged);
    if (!known) this.#update(state);
  }

  #draw(state: State, meta: Meta, resized: boolean): void {
    const possible = fitted(state, meta.layers);
    if (!sameState(possible, state)) return this.store.set(possible);
    const { layer, head } = state;
    // The state first: a new head is then drawn in its place and colours at once.
    this.#map.update(state);
    if (this.#shown?.meta !== meta || this.#shown.layer !== layer || this.#shown.head !== head) {
      this.#shown = { meta, layer, head };
      this.#finder.reset();
      this.#map.setHead(meta, layer, head);
      document.title = `L${layer}H${headNumber(meta, layer, head)} ${title(meta.name)} - Sightline`;
    }
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
      this.#timer = setTimeout(() => this.#update(this.store.get()), SINK_PAUSE);
    const shown = this.#belongs(state) ? this.#shown : null;
    const meta = shown?.meta ?? null;
    this.#toolbar.update(state, { meta, live: this.session.live, sinkShare, tableOpen: this.#table.open });
    this.#navigator.show(meta, state.layer, state.head, this.session.model || (meta?.model ?? ""));
    this.#inspector.show(shown, state.pinQuery, state.pinKey);
  }

  #arrange(state: State): void {
    this.#centre.arrange(state, this.#belongs(state) ? (this.#traces.known(state.trace)?.layers[0]?.keys ?? null) : null);
  }

  /** A trace longer than can be typed does not belong under the text box. */
  #belongs(state: State): boolean {
    const keys = this.#traces.known(state.trace)?.layers[0]?.keys;
    return keys !== undefined && (state.view === "map" || keys <= this.session.limit);
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
      if (own.origin !== null) return this.store.set({ trace: own.origin, whatIf: true });
      if (whatIf && own.what_if === null) return this.store.set({ whatIf: false });
      const meta = whatIf && own.what_if !== null ? await this.#traces.meta(own.what_if) : own;
      if (signal.aborted) return;
      this.#arrange(this.store.get());
      this.#draw(this.store.get(), meta, true);
    } catch (error) {
      if (aborted(error) || signal.aborted) return;
      // A picture of another trace than the address names would be a wrong one.
      this.#close();
      const missing = error instanceof Refused && error.status === 404;
      this.#centre.say(
        missing
          ? `This server does not have the trace ${trace}. Open the folder that holds it with sightline explore FOLDER.`
          : told(error),
      );
    }
  }

  /** Show no trace. */
  #close(): void {
    this.#shown = null;
    this.#arrange(this.store.get());
    this.#update(this.store.get());
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
    this.#map.update(this.store.get());
    this.#sentence.update(this.store.get());
    this.#offerText(this.store.get());
    this.#inspector.refreshNames();
    this.#table.refreshNames();
  }

  #createMap(named: () => Meta | undefined): MapView {
    const on: MapEvents = {
      moved: (centre, zoom) => this.store.set({ centre, zoom }),
      hovered: (cell) => this.#hovered(cell),
      picked: ({ query, key }) => this.#pins.toggle({ pinQuery: query, pinKey: key }),
      pickedQuery: (query) => this.#pins.toggle({ pinQuery: query }),
      pickedKey: (key) => this.#pins.toggle({ pinKey: key }),
    };
    const map = createMapView(this.#transport, on, {
      tokens: (side, from, to) => {
        const meta = named();
        return meta && this.#traces.textsOf(meta).range(this.store.get().layer, side, from, to);
      },
    });
    describeMap(map.element);
    return map;
  }

  #createTwin(): Twin {
    let meta: Meta | undefined;
    const map = this.#createMap(() => meta);
    map.element.setAttribute("aria-roledescription", "map of the untrained model");
    return {
      map,
      setMeta: (now) => {
        meta = now;
      },
    };
  }

  #createFinder(): Finder {
    return createFinder({
      find: (wanted) => this.#traces.find(this.#shown, wanted),
      from: () => this.store.get().pinQuery ?? this.#map.visible().query[0],
      arrive: (position) => this.#pins.jump(position),
      length: () => this.#layer?.queries ?? 0,
      leave: () => this.#map.element.focus(),
    });
  }

  #createToolbar(): ReturnType<typeof createToolbar> {
    const actions = {
      showView: (view: View) => this.#showView(view),
      fitRange: () => this.#fitRange(),
      toggleWhatIf: () => this.#toggleWhatIf(),
      showTable: () => this.#toggleTable(),
      copyLink: () => void this.#copyLink(),
      openHelp: () => this.#help.open(),
    };
    return createToolbar(this.store, actions, this.#finder.element);
  }

  #createInspector(): Inspector {
    return new Inspector(this.#transport, {
      pin: (side, position) => this.#pins.pin(side, position),
      unpin: (side) => this.#pins.pin(side, null),
      follow: () => this.#pins.follow(),
      back: () => this.#pins.back(),
      canGoBack: () => this.#pins.canGoBack,
      text: (side, position) => this.#text(side, position),
      say: (text) => this.#live.say(text),
    });
  }

  #createTable(): StrongestTable {
    const actions = {
      text: (side: Side, position: number) => this.#text(side, position),
      pick: (query: number, key: number) => this.#pins.pinCell({ query, key }),
      view: () => this.#map.visible(),
      held: (count: number) => this.#map.strongest(count),
    };
    return new StrongestTable(this.#transport, actions, () => this.#toggleTable());
  }

  #createSentence(): SentenceView {
    return new SentenceView(this.session, this.#transport, {
      state: () => this.store.get(),
      ran: (trace) => this.#showRun(trace),
      openAsMap: () => this.#showView("map"),
      meta: (trace) => this.#traces.meta(trace),
      createTwin: () => this.#createTwin(),
      say: (text) => this.#live.say(text),
    });
  }

  #listenForKeys(root: HTMLElement): void {
    const commands = commandsOf({
      store: this.store,
      map: this.#map,
      pins: this.#pins,
      finder: this.#finder,
      shown: () => this.#shown,
      showView: (view) => this.#showView(view),
      toggleWhatIf: () => this.#toggleWhatIf(),
      toggleTable: () => this.#toggleTable(),
      copyLink: () => void this.#copyLink(),
      help: () => this.#help.open(),
    });
    listenForKeys(
      root,
      () => this.#keys,
      (action) => commands[action](),
    );
  }

  #showView(view: View): void {
    if (view === "sentence" && !this.session.live)
      return this.#notice.show("This session has no model to run: start one with sightline look MODEL.");
    if (view === "map" && this.store.get().trace === "")
      return this.#notice.show("There is nothing to map yet: type a text first.");
    this.store.set({ view, centre: null, zoom: null }, "push");
    if (view === "sentence") this.#sentence.focus();
  }

  #showRun(trace: string): void {
    this.#pins.forget();
    this.store.set({ trace, centre: null, zoom: null, pinQuery: null, pinKey: null });
  }

  /** Spoken only for those who came by keyboard: a pointer over the map would never be silent. */
  #hovered(cell: Cell | null): void {
    if (!cell || !this.#map.element.matches(":focus-visible")) return;
    const reading = this.#map.valueAt(cell);
    const texts = { queryText: this.#text("query", cell.query), keyText: this.#text("key", cell.key) };
    this.#live.say(spokenCell({ ...cell, ...texts, value: reading?.value, exact: reading?.exact ?? false }));
  }

  #toggleWhatIf(): void {
    const { trace, whatIf } = this.store.get();
    if ((this.#traces.known(trace)?.what_if ?? null) === null) {
      return this.#notice.show("There is no mask to take away here, or only the weights were recorded.");
    }
    this.store.set({ whatIf: !whatIf }, "push");
    this.#live.say(whatIf ? "As the model computed it." : "What if it could look ahead: not what the model computed.", true);
  }

  #toggleTable(): void {
    this.#table.setOpen(!this.#table.open);
    this.#table.refresh(this.#shown);
    if (this.#table.open) this.#table.element.focus();
    else this.#map.element.focus();
    this.#update(this.store.get());
    this.#map.resize();
  }

  #fitRange(): void {
    const range = this.#map.valueRange();
    if (range) this.store.set({ range: validRange(range[0], range[1]) });
    else this.#notice.show("No values in view yet.");
  }

  async #copyLink(): Promise<void> {
    const copied = await this.#address.copy();
    this.#notice.show(copied ? "Link copied." : "The browser did not allow copying; the link is in the address bar.");
  }
}
