/**
 * The text view: shows for a token of the text what it attends to and what attends to it.
 *
 * In: the state and the shown head. Out: pins. The links are those of the pinned token or span; with nothing pinned,
 * those of the token under the pointer; with neither, tokens are shaded by the attention that they receive.
 * What a token attends to is shaded, what attends to it is underlined; lists next to the text have the same links
 * with numbers.
 * Links come from the server, paragraphs from paragraphs.ts, positions from positions.ts.
 */

import { segments, setPressed, toggle } from "../panels/controls";
import { element, field, replaceChildren } from "../panels/dom";
import { describeToken } from "../panels/live_region";
import type { CentreView, ViewContext } from "../panels/view_context";
import type { Action } from "../keys";
import { formatCount, formatWeight } from "../format_numbers";
import { getEnlargement } from "../paint/canvas";
import { formatTitle } from "../paint/token_text";
import { isConnectionError } from "../server/connection";
import { LatestRequest, ResponseCache } from "../server/requests";
import { paths, type Layer, type Links, type MatrixShape, type Section, type Side, type TraceHead, type Unit } from "../server/protocol";
import type { State } from "../state";
import { FarPassages } from "./far_passages";
import { createReceivedLegend, ReceivedAttention } from "./received_attention";
import { EvictedMarks } from "./evicted_marks";
import { SurpriseMarks } from "./surprise_marks";
import { isCode } from "./text_kind";
import { createTextLegend } from "./text_legend";
import { createLinkList } from "./link_list";
import { getHighlightRegistry, HighlightSet } from "./highlights";
import { TextPage } from "./text_page";
import { findLastAtMost } from "./paragraphs";
import { chooseWindow, combineLinks, createPins, getLength, getOtherSide, getPageSide, getPinnedPositions, getShift, shiftLinks, SIDES } from "./positions";

interface TextSpot {
  readonly page: Side;
  readonly at: number;
}

const MAX_SECTIONS = 200;
/** The links of the previous token stay for the time that a response usually takes. */
const STALE_MILLISECONDS = 200;
const SCROLL_REST_MILLISECONDS = 200;
const NO_TEXTS_MESSAGE = "The texts of these tokens are not known: there is nothing to read.";
const NO_HIGHLIGHTS_MESSAGE = "This browser cannot highlight text; the lists hold the same links.";
const INVITATION_MESSAGE =
  "Point at a token to see what it attends to, and what attends to it; click to pin it. Drag over a passage to pin it as the key.";
/** Pointing at a token loads its links after this time. */
const HOVER_MILLISECONDS = 60;
/** Links of this many tokens of a span are added up. */
const MAX_SPAN = 64;
const NO_LAYER: MatrixShape & Pick<Layer, "has_texts"> = { queries: 0, keys: 0, offset: 0, cross: false, has_texts: false };

export class TextView implements CentreView {
  readonly element: HTMLElement;
  readonly #marks = new HighlightSet(getHighlightRegistry());
  readonly #pages: Readonly<Record<Side, TextPage>> = { query: new TextPage("Queries"), key: new TextPage("Text") };
  readonly #lists;
  readonly #units;
  readonly #sections = element("select", { class: "text-sections" });
  readonly #sectionField = field("part", this.#sections, { hidden: true });
  readonly #note = element("p", { class: "text-note", role: "status" });
  readonly #hint = element("div", { class: "text-hint", hidden: true });
  readonly #invitation: HTMLElement;
  readonly #cache: ResponseCache;
  readonly #far: FarPassages;
  readonly #received: ReceivedAttention;
  readonly #surprise: SurpriseMarks;
  readonly #evicted: EvictedMarks;
  readonly #mono = toggle("Monospaced", "Set the text in a monospaced face, as code is", () => this.#setMono(!this.#isMono));
  readonly #requests = { text: new LatestRequest(), sections: new LatestRequest(), words: new LatestRequest(), query: new LatestRequest(), key: new LatestRequest() };
  readonly #requested: Record<"text" | "words" | Side, string | null> = { text: null, words: null, query: null, key: null };
  readonly #links: Record<Side, Links | null> = { query: null, key: null };
  #words: Partial<Record<Side, readonly number[]>> = {};
  #state: State;
  #shown: TraceHead | null = null;
  #layer = NO_LAYER;
  /** Whose text is on the pages. */
  #source = "";
  #hovered: TextSpot | null = null;
  #isMono = false;
  /** Where the pointer went down, for a drag over a passage. */
  #dragged: TextSpot | null = null;
  /** Whether the page itself scrolled last, and not the reader. */
  #isOwnScroll = true;
  #hoverTimer: ReturnType<typeof setTimeout> | undefined;
  /** The state that the pages have been scrolled for. */
  #scrolledState: Pick<State, "pinQuery" | "pinKey" | "textPlace"> | null = null;
  /** The scroll positions when the view was hidden. */
  #savedScroll: Record<Side, number> | null = null;
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly context: ViewContext) {
    const { store, transport, signal } = context;
    this.#state = store.get();
    this.#cache = new ResponseCache(transport, 16);
    const actions = {
      getText: (side: Side, position: number) => this.#getText(side, position, position + 1),
      goTo: (side: Side, at: number) => this.#goTo(side, at),
    };
    this.#lists = { query: createLinkList("query", actions), key: createLinkList("key", actions) };
    this.#far = new FarPassages(actions);
    this.#received = new ReceivedAttention(transport, this.#marks, signal);
    this.#surprise = new SurpriseMarks(transport, this.#marks, signal);
    this.#evicted = new EvictedMarks(transport, this.#marks, signal);
    this.#units = segments<Unit>(
      "Count in",
      [
        ["token", "Tokens"],
        ["word", "Words", "The mean attention from the tokens of a word, and the sum of attention to them"],
      ],
      (unit) => store.set({ words: unit === "word" }),
    );
    this.#invitation = element("div", { class: "soft" }, element("p", {}, INVITATION_MESSAGE), createReceivedLegend(signal));
    this.element = this.#createLayout(createTextLegend(signal));
    // The page scrolls, so it takes the keys.
    this.element.addEventListener("focus", () => this.#pages[getPageSide(this.#layer, "query")].element.focus());
    this.#sections.addEventListener("change", () => {
      this.#isOwnScroll = false;
      this.#pages.key.reveal(Number(this.#sections.value), true);
    });
    for (const side of SIDES) this.#attachListeners(side);
    signal.addEventListener("abort", () => this.deactivate());
  }

  #createLayout(legend: HTMLElement): HTMLElement {
    return element(
      "div",
      { class: "text-view", tabindex: -1 },
      element("div", { class: "bar" }, this.#units.element, this.#mono, this.#surprise.element, this.#sectionField, legend, this.#evicted.element),
      this.#note,
      element(
        "div",
        { class: "text-body" },
        element("div", { class: "text-pages" }, this.#pages.query.element, this.#pages.key.element, this.#hint),
        element(
          "div",
          { class: "text-links", role: "region", "aria-label": "Links", tabindex: 0 },
          this.#invitation,
          this.#far.element,
          this.#lists.query.element,
          this.#lists.key.element,
        ),
      ),
    );
  }

  #attachListeners(page: Side): void {
    const { element } = this.#pages[page];
    let [x, y] = [0, 0];
    const point = (event: MouseEvent): void => {
      const at = this.#pages[page].findTokenAt(event);
      this.#setHovered(at === null ? null : { page, at });
    };
    element.addEventListener("pointerdown", (event) => {
      [x, y] = [event.clientX, event.clientY];
      this.#isOwnScroll = false;
      const at = this.#pages[page].findTokenAt(event);
      this.#dragged = at === null ? null : { page, at };
    });
    for (const type of ["wheel", "touchmove", "keydown"] as const)
      element.addEventListener(type, () => (this.#isOwnScroll = false), { passive: true });
    element.addEventListener("pointermove", (event) => {
      cancelAnimationFrame(this.#frame);
      this.#frame = requestAnimationFrame(() => point(event));
    });
    element.addEventListener("pointerleave", () => this.#setHovered(null));
    element.addEventListener("click", (event) => {
      const isDrag = Math.hypot(event.clientX - x, event.clientY - y) > 4;
      point(event);
      if (!this.#hovered) return;
      const { pinKey } = this.#state;
      if (isDrag) this.#pinSpan(this.#dragged, this.#hovered);
      else if (event.shiftKey && pinKey !== null) this.#pinSpan({ page: "key", at: pinKey }, this.#hovered);
      else this.#togglePin(this.#hovered);
    });
    element.addEventListener("scroll", () => {
      this.#setHovered(null);
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => {
        this.#showVisible();
        if (!this.#isOwnScroll) this.#reportScroll();
      }, SCROLL_REST_MILLISECONDS);
    });
  }

  update(state: State, shown: TraceHead | null): void {
    const layer = shown?.meta.layers[shown.layer];
    [this.#state, this.#shown] = [state, shown];
    if (!shown || !layer) return;
    this.#layer = layer;
    this.#pages.query.element.hidden = !layer.cross;
    this.#pages.key.element.setAttribute("aria-label", layer.cross ? "Keys" : "Text");
    this.#units.update(this.#unit);
    this.#units.enable("word", layer.has_texts, NO_TEXTS_MESSAGE);
    this.#refreshLinks();
    if (this.#unit === "word") void this.#loadWords(shown);
    this.#loadText(shown);
    if (this.#savedScroll) this.#isOwnScroll = true;
    for (const side of SIDES) if (this.#savedScroll) this.#pages[side].element.scrollTop = this.#savedScroll[side];
    this.#savedScroll = null;
    this.#scrollToPins();
    this.#showVisible();
  }

  /** The tokens whose links are shown, on their pages: pinned, or under the pointer; as [first, last]. */
  #getActive(): Record<Side, readonly [number, number] | null> {
    const layer = this.#layer;
    const { pinQuery, pinQueryEnd, pinKey, pinKeyEnd } = this.#state;
    const isPinned = pinQuery !== null || pinKey !== null;
    const hovered = !isPinned && this.#hovered ? createPins(layer, this.#hovered.page, this.#hovered.at) : null;
    const { query, key } = getPinnedPositions(layer, hovered ? { pinQuery: null, pinKey: null, ...hovered } : this.#state);
    return {
      // A passage that is pinned as the key is not a query.
      query:
        query === null || (pinKeyEnd !== null && pinQuery === null)
          ? null
          : [query, pinQueryEnd === null ? query : pinQueryEnd + getShift(layer, "query")],
      key: key === null ? null : [key, pinKeyEnd ?? key],
    };
  }

  #refreshLinks(): void {
    const shown = this.#shown;
    if (!shown) return;
    const active = this.#getActive();
    for (const side of SIDES) {
      const [first, last] = active[side] ?? [0, -1];
      const shift = getShift(this.#layer, side);
      const end = Math.min(last, first + MAX_SPAN - 1);
      const wanted = Array.from({ length: end - first + 1 }, (_, index) =>
        paths.links(shown.meta.trace, shown.layer, shown.head, side, first + index - shift, this.#unit),
      );
      this.#loadLinks(side, wanted);
    }
    this.#invitation.hidden = active.query !== null || active.key !== null;
    this.#showVisible();
  }

  /** Shade what is in view: the attention received where nothing is selected, the surprise, control tokens. */
  #showVisible(): void {
    const shown = this.#shown;
    const page = this.#pages.key;
    if (!shown || page.texts.length === 0) return;
    const visible = page.findVisible();
    this.#received.show(shown, page, this.#invitation.hidden ? null : visible);
    this.#surprise.show(shown, page, visible);
    this.#evicted.show(shown, page, visible, this.#state.eviction);
    this.#marks.set("control", page.control.flatMap(([start, stop]) => page.createRange(start, stop) ?? []));
    this.#far.show(this.#links.query, visible, page === this.#pages[getPageSide(this.#layer, "key")]);
  }

  #setMono(isMono: boolean): void {
    this.#isMono = isMono;
    setPressed(this.#mono, isMono);
    this.element.classList.toggle("mono", isMono);
    this.#showVisible();
  }

  /** Pin the passage between two tokens as the key; the query stays. */
  #pinSpan(from: TextSpot | null, to: TextSpot): void {
    if (!from || from.page !== to.page || to.page !== "key") return;
    const ends = [...this.#getUnitRange(from), ...this.#getUnitRange(to)];
    this.context.store.set({ pinKey: Math.min(...ends), pinKeyEnd: Math.max(...ends) - 1 }, "push");
  }

  deactivate(): void {
    for (const latest of Object.values(this.#requests)) latest.cancel();
    for (const side of SIDES) this.#requested[side] = null;
    if (this.element.dataset["state"] !== "ready") this.#requested.text = null;
    clearTimeout(this.#timer);
    clearTimeout(this.#hoverTimer);
    this.#savedScroll = { query: this.#pages.query.element.scrollTop, key: this.#pages.key.element.scrollTop };
    this.#setHovered(null);
    this.#marks.clear();
  }

  handleAction(action: Action): boolean {
    const [, step, name] = /^(next|previous)(Query|Key)$/.exec(action) ?? [];
    const page = getPageSide(this.#layer, name === "Key" ? "key" : "query");
    if (step) this.#stepPin(page, step === "next" ? 1 : -1);
    else if (action === "follow") this.#followStrongest();
    else if (action === "pin") this.#togglePin(this.#hovered ?? { page, at: this.#pages[page].findFirstVisible() });
    else return false;
    return true;
  }

  get #unit(): Unit {
    return this.#state.words && this.#layer.has_texts ? "word" : "token";
  }

  get #sides(): readonly Side[] {
    return this.#layer.cross ? SIDES : ["key"];
  }

  /** The word of a token, or the tokens of its character. */
  #getUnitRange({ page, at }: TextSpot): [number, number] {
    const words = this.#unit === "word" ? this.#words[page] : undefined;
    if (!words) return this.#pages[page].getCharacterTokens(at);
    const index = findLastAtMost(words, at);
    return [words[index] ?? 0, words[index + 1] ?? getLength(this.#layer, page)];
  }

  #getText(side: Side, start: number, stop: number): string | undefined {
    const page = getPageSide(this.#layer, side);
    const { texts, from } = this.#pages[page];
    const found = start < from ? [] : texts.slice(start - from, stop - from);
    // Load only texts outside of the window; the others are already loading.
    if (found.length === stop - start || texts.length === 0) return found.length > 0 ? found.join("") : undefined;
    const { meta, layer = 0 } = this.#shown ?? {};
    return meta && this.context.traces.getTexts(meta).get(layer, page, start);
  }

  #togglePin(spot: TextSpot): void {
    const at = this.#unit === "word" ? this.#getUnitRange(spot)[0] : spot.at;
    this.context.pins.toggle(createPins(this.#layer, spot.page, at));
  }

  #stepPin(page: Side, by: number): void {
    const pins = getPinnedPositions(this.#layer, this.#state);
    const now = this.#layer.cross ? pins[page] : (pins.query ?? pins.key);
    const whole = this.#unit === "word";
    const [start, stop] = now === null ? [0, 0] : whole ? this.#getUnitRange({ page, at: now }) : [now, now + 1];
    const wanted = now === null ? this.#pages[page].findFirstVisible() : by > 0 ? stop : start - 1;
    const at = Math.max(0, Math.min(getLength(this.#layer, page) - 1, wanted));
    this.context.store.set(createPins(this.#layer, page, whole ? this.#getUnitRange({ page, at })[0] : at), "push");
  }

  #goTo(side: Side, at: number): void {
    const { pinQuery, pinKey } = this.#state;
    this.context.pins.goTo({ pinQuery, pinKey, ...createPins(this.#layer, getPageSide(this.#layer, side), at) });
  }

  #followStrongest(): void {
    const { query } = this.#links;
    const next = query?.links.find(
      ([start]) => (this.#layer.cross || start !== query.span[0]) && !(this.#state.hideSink && start === 0),
    );
    if (next) this.#goTo("key", next[0]);
    else this.context.showNotice("There is nothing to follow.");
  }

  #loadText({ meta, layer: number }: TraceHead): void {
    const { has_texts: known, cross, queries, keys } = this.#layer;
    const pins = getPinnedPositions(this.#layer, this.#state);
    const windows = this.#sides.map((page) => {
      const { from, texts } = this.#pages[page];
      const at = pins[page] ?? this.#state.textPlace?.[page] ?? 0;
      return chooseWindow(getLength(this.#layer, page), at, [from, from + texts.length]);
    });
    const wanted = this.#sides.map((page, index) => paths.text(meta.trace, number, page, ...(windows[index] ?? [0, 0])));
    if (this.#requested.text === wanted.join()) return;
    this.#requested.text = wanted.join();
    this.#requests.text.cancel();
    this.#requests.sections.cancel();
    // Without its mask a trace has the same text; layers of another shape may have another.
    const source = known ? [meta.origin ?? meta.trace, cross, queries, keys].join() : "";
    if (source !== this.#source) for (const side of SIDES) this.#pages[side].show([], 0);
    this.#source = source;
    this.element.dataset["state"] = "reading";
    if (!known) return this.#showNote(NO_TEXTS_MESSAGE);
    if (this.#pages.key.texts.length === 0) this.#showNote("Reading the text…");
    void this.#requests.text.run(
      (signal) => Promise.all(wanted.map((path) => this.context.transport.json<string[]>(path, signal))),
      (texts) => {
        const changed = this.#sides.filter((page, index) => this.#pages[page].show(texts[index] ?? [], windows[index]?.[0] ?? 0));
        this.#onTextLoaded();
        if (changed.length === 0) return;
        this.#setMono(isCode(this.#pages.key.texts));
        this.#scrolledState = null;
        this.#scrollToPins();
        this.#loadSections(paths.sections(meta.trace, number, "key"));
      },
      (message, error) => {
        if (isConnectionError(error)) this.#requested.text = null;
        this.#showNote(message);
      },
    );
  }

  #loadSections(path: string): void {
    void this.#requests.sections.run(
      (signal) => this.context.transport.json<Section[]>(path, signal),
      (sections) => this.#showSections(sections),
      // The text can be read without them.
      () => this.#showSections([]),
    );
  }

  #onTextLoaded(): void {
    const { from, texts } = this.#pages.key;
    const { keys } = this.#layer;
    const part = `Tokens ${formatCount(from)} to ${formatCount(from + texts.length - 1)} of ${formatCount(keys)}; go to a position to read elsewhere. `;
    this.#showNote((texts.length < keys ? part : "") + (getHighlightRegistry() ? "" : NO_HIGHLIGHTS_MESSAGE));
    for (const side of SIDES) this.#showLinks(side, this.#links[side]);
    this.element.dataset["state"] = "ready";
  }

  #showNote(text: string): void {
    this.#note.textContent = text;
    this.#note.hidden = text === "";
  }

  #showSections(all: readonly Section[]): void {
    for (const [position, importance] of all) if (importance >= 0.8) this.#pages.key.markHeading(position);
    const found = all
      .filter(([, importance]) => importance >= 0.5)
      .sort((one, other) => other[1] - one[1])
      .slice(0, MAX_SECTIONS)
      .sort((one, other) => one[0] - other[0]);
    replaceChildren(
      this.#sections,
      ...found.map(([position, , text]) => element("option", { value: position }, `${formatCount(position)} ${formatTitle(text)}`)),
    );
    this.#sectionField.hidden = found.length < 2;
  }

  async #loadWords({ meta, layer }: TraceHead): Promise<void> {
    const wanted = this.#sides.map((page) => paths.words(meta.trace, layer, page));
    if (this.#requested.words === wanted.join()) return;
    this.#requested.words = wanted.join();
    const signal = this.#requests.words.start();
    this.#words = {};
    // Without them tokens are highlighted, while the lists still count words.
    const found = await Promise.all(wanted.map((path) => this.context.transport.json<number[]>(path, signal))).catch(() => null);
    if (signal.aborted) this.#requested.words = null;
    else this.#words = Object.fromEntries(this.#sides.map((page, index) => [page, found?.[index]]));
  }

  #loadLinks(side: Side, wanted: readonly string[]): void {
    const name = wanted.join();
    if (name === this.#requested[side]) return;
    this.#requested[side] = name;
    this.#requests[side].cancel();
    if (name === "") return this.#showLinks(side, null);
    const stale = setTimeout(() => this.#showLinks(side, "reading…"), STALE_MILLISECONDS);
    void this.#requests[side]
      .run(
        (signal) => Promise.all(wanted.map((path) => this.#cache.json<Links>(path, signal))),
        (links) => {
          this.#showLinks(side, shiftLinks(this.#layer, side, combineLinks(side, links)));
          const { pinQuery, pinKey } = this.#state;
          // Pointing at tokens would never stop announcing.
          if (pinQuery !== null || pinKey !== null)
            this.context.announce(SIDES.flatMap((one) => this.#describeLinks(one)).join("; "));
        },
        (message, error) => {
          if (isConnectionError(error)) this.#requested[side] = null;
          this.#showLinks(side, message);
        },
      )
      .finally(() => clearTimeout(stale));
  }

  /** Links to list and to paint, or why there are none. */
  #showLinks(side: Side, found: Links | string | null): void {
    const links = typeof found === "string" ? null : found;
    this.#links[side] = links;
    this.#lists[side].show(found, this.#unit);
    const others = this.#pages[getPageSide(this.#layer, getOtherSide(side))];
    this.#marks.setByWeight(side === "query" ? "out" : "in", others.createRanges(links?.links ?? []));
    const { query, key } = this.#links;
    this.#setMark("own-query", getPageSide(this.#layer, "query"), query?.span);
    // In one text both are mostly the same token, which needs one mark.
    this.#setMark("own-key", "key", this.#layer.cross || key?.span[0] !== query?.span[0] ? key?.span : undefined);
    this.#showVisible();
  }

  #setMark(name: string, page: Side, tokens: readonly [number, number] | undefined): void {
    const range = tokens && this.#pages[page].createRange(...tokens);
    this.#marks.set(name, range ? [range] : []);
  }

  #describeLinks(side: Side): string[] {
    const { span, links } = this.#links[side] ?? {};
    const [first] = links ?? [];
    if (!span || !first) return [];
    const getName = (of: Side, start: number, stop: number): string => describeToken(of, start, this.#getText(of, start, stop));
    const verb = side === "query" ? "attends most to" : "is attended most by";
    return [`${getName(side, ...span)} ${verb} ${getName(getOtherSide(side), first[0], first[1])}, weight ${formatWeight(first[2])}`];
  }

  /** Bring into view what is newly pinned, or the place that the address newly names. */
  #scrollToPins(): void {
    if (this.#pages.key.texts.length === 0) return;
    const [before, { pinQuery, pinKey, textPlace }] = [this.#scrolledState, this.#state];
    this.#scrolledState = this.#state;
    const pins = getPinnedPositions(this.#layer, this.#state);
    const moved = { query: pinQuery !== (before?.pinQuery ?? null), key: pinKey !== (before?.pinKey ?? null) };
    for (const side of ["key", "query"] as const) {
      const at = pins[side];
      const isPlaced = !moved.query && !moved.key && textPlace && textPlace[side] !== before?.textPlace?.[side];
      if ((moved[side] && at !== null) || isPlaced) this.#isOwnScroll = true;
      if (moved[side] && at !== null) this.#pages[getPageSide(this.#layer, side)].reveal(at);
      else if (isPlaced) this.#pages[side].reveal(Math.floor(textPlace[side]), true);
    }
  }

  /** Write the scroll position to the store after scrolling. */
  #reportScroll(): void {
    if (this.#pages.key.texts.length === 0) return;
    const [query = 0, key = 0] = SIDES.map((side) => this.#pages[getPageSide(this.#layer, side)].findFirstVisible());
    const starts = Array.from(this.#sections.options, ({ value }) => Number(value));
    this.#sections.selectedIndex = findLastAtMost(starts, key);
    const textPlace = { query, key };
    this.#scrolledState = { ...this.#state, textPlace };
    this.context.store.set({ textPlace });
  }

  #setHovered(spot: TextSpot | null): void {
    cancelAnimationFrame(this.#frame);
    if (spot?.at === this.#hovered?.at && spot?.page === this.#hovered?.page) return;
    this.#hovered = spot;
    this.#hint.hidden = spot === null;
    clearTimeout(this.#hoverTimer);
    this.#hoverTimer = setTimeout(() => this.#refreshLinks(), HOVER_MILLISECONDS);
    const [start, stop] = spot ? this.#getUnitRange(spot) : [0, 0];
    const { page } = spot ?? { page: "key" };
    this.#setMark("hover", page, [start, stop]);
    const [box] = this.#pages[page].getBoxes(start, stop);
    const around = this.#hint.offsetParent?.getBoundingClientRect();
    if (!box || !around) return;
    replaceChildren(this.#hint, formatCount(start), stop > start + 1 && ` to ${formatCount(stop - 1)}`, ...this.#listWeights(page, start));
    const enlargement = getEnlargement(this.#hint);
    this.#hint.style.left = `${Math.min((box.left - around.left) / enlargement, around.width / enlargement - this.#hint.offsetWidth - 8)}px`;
    this.#hint.style.top = `${(box.bottom - around.top) / enlargement + 6}px`;
  }

  /** What a token gets from the pinned one, and gives to it. */
  #listWeights(page: Side, start: number): HTMLElement[] {
    return SIDES.filter((side) => getPageSide(this.#layer, getOtherSide(side)) === page).flatMap((side) => {
      const { pinQuery, pinKey } = this.#state;
      const found = pinQuery === null && pinKey === null ? undefined : this.#links[side]?.links.find(([place]) => place === start);
      return found ? [element("span", {}, `${side === "query" ? "gets" : "gives"} ${formatWeight(found[2])}`)] : [];
    });
  }
}
