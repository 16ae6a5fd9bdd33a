/**
 * The text itself, for those who would rather read: point at a token, and see what it looks at and who looks at it.
 *
 * In: the state and the head that is shown. Out: pins. What a token looks at is shaded, who looks at it is underlined;
 * lists beside the text hold the same with numbers.
 * Does not know: how links are found (the server does), how text becomes paragraphs (passage.ts), which position is
 * where (places.ts).
 */

import { segments } from "../panels/controls";
import { element, field, replaceChildren } from "../panels/dom";
import type { Shown } from "../panels/inspector";
import { named } from "../panels/live_region";
import type { CentreView, ViewContext } from "../panels/view_context";
import type { Action } from "../keys";
import { counted, plain } from "../format_numbers";
import { title } from "../paint/token_text";
import { unanswered } from "../server/connection";
import { Answers, Latest, told } from "../server/requests";
import { paths, type Layer, type Links, type Section, type Side, type Unit } from "../server/protocol";
import { aborted } from "../server/transport";
import type { State } from "../state";
import { createLegend } from "./text_legend";
import { createLinkList } from "./link_list";
import { highlights, Marks } from "./highlights";
import { Page } from "./text_page";
import { lastAtMost } from "./paragraphs";
import { lengthOf, otherOf, pageOf, pinnedIn, pinning, placed, shiftOf, SIDES, windowOf, type Shape } from "./positions";

interface Spot {
  readonly page: Side;
  readonly at: number;
}

const MOST_SECTIONS = 200;
/** What was painted for another token goes, but not for the moment that an answer usually takes. */
const STALE = 200;
const REST = 200;
const UNKNOWN = "The texts of these tokens are not known: there is nothing to read.";
const UNPAINTED = "This browser cannot highlight text; the lists hold the same links.";
const INVITATION = "Click a token to see what it looks at, and who looks at it; or walk through them with . and ,";
const NO_LAYER: Shape & Pick<Layer, "texts"> = { queries: 0, keys: 0, offset: 0, cross: false, texts: false };

export function createTextView(context: ViewContext): CentreView {
  return new TextView(context);
}

class TextView implements CentreView {
  readonly element: HTMLElement;
  readonly #marks = new Marks(highlights());
  readonly #pages: Readonly<Record<Side, Page>> = { query: new Page("Queries"), key: new Page("Text") };
  readonly #lists;
  readonly #units;
  readonly #sections = element("select", { class: "text-sections" });
  readonly #part = field("part", this.#sections, { hidden: true });
  readonly #note = element("p", { class: "text-note", role: "status" });
  readonly #hint = element("div", { class: "text-hint", hidden: true });
  readonly #invitation = element("p", { class: "soft" }, INVITATION);
  readonly #answers: Answers;
  readonly #asking = { text: new Latest(), words: new Latest(), query: new Latest(), key: new Latest() };
  readonly #asked: Record<"text" | "words" | Side, string | null> = { text: null, words: null, query: null, key: null };
  readonly #links: Record<Side, Links | null> = { query: null, key: null };
  #words: Partial<Record<Side, readonly number[]>> = {};
  #state: State;
  #shown: Shown | null = null;
  #layer = NO_LAYER;
  /** Whose text is on the pages. */
  #source = "";
  #hovered: Spot | null = null;
  /** The state that the pages have been scrolled for. */
  #seen: Pick<State, "pinQuery" | "pinKey" | "centre"> | null = null;
  /** Where the pages stood when they were left. */
  #left: Record<Side, number> | null = null;
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly context: ViewContext) {
    const { store, transport, signal } = context;
    this.#state = store.get();
    this.#answers = new Answers(transport, 16);
    const actions = {
      text: (side: Side, start: number, stop: number) => this.#text(side, start, stop),
      go: (side: Side, at: number) => this.#go(side, at),
    };
    this.#lists = { query: createLinkList("query", actions), key: createLinkList("key", actions) };
    this.#units = segments<Unit>(
      "Count in",
      [
        ["token", "Tokens"],
        ["word", "Words", "What the tokens of a word give on average, and receive together"],
      ],
      (unit) => store.set({ words: unit === "word" }),
    );
    this.element = this.#arranged(createLegend(signal));
    // The page scrolls, so it takes the keys.
    this.element.addEventListener("focus", () => this.#pages[pageOf(this.#layer, "query")].element.focus());
    this.#sections.addEventListener("change", () => this.#pages.key.reveal(Number(this.#sections.value), true));
    for (const side of SIDES) this.#listen(side);
    signal.addEventListener("abort", () => this.leave());
  }

  #arranged(legend: HTMLElement): HTMLElement {
    return element(
      "div",
      { class: "text-view", tabindex: -1 },
      element("div", { class: "bar" }, this.#units.element, this.#part, legend),
      this.#note,
      element(
        "div",
        { class: "text-body" },
        element("div", { class: "text-pages" }, this.#pages.query.element, this.#pages.key.element, this.#hint),
        element(
          "div",
          { class: "text-links", role: "region", "aria-label": "Links", tabindex: 0 },
          this.#invitation,
          this.#lists.query.element,
          this.#lists.key.element,
        ),
      ),
    );
  }

  #listen(page: Side): void {
    const { element } = this.#pages[page];
    let [x, y] = [0, 0];
    const point = (event: MouseEvent): void => {
      const at = this.#pages[page].under(event);
      this.#hover(at === null ? null : { page, at });
    };
    element.addEventListener("pointerdown", (event) => {
      [x, y] = [event.clientX, event.clientY];
    });
    element.addEventListener("pointermove", (event) => {
      cancelAnimationFrame(this.#frame);
      this.#frame = requestAnimationFrame(() => point(event));
    });
    element.addEventListener("pointerleave", () => this.#hover(null));
    element.addEventListener("click", (event) => {
      // Whoever drags over words wants to copy them.
      if (Math.hypot(event.clientX - x, event.clientY - y) > 4) return;
      point(event);
      if (this.#hovered) this.#pin(this.#hovered);
    });
    element.addEventListener("scroll", () => {
      this.#hover(null);
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#rest(), REST);
    });
  }

  update(state: State, shown: Shown | null): void {
    const layer = shown?.meta.layers[shown.layer];
    [this.#state, this.#shown] = [state, shown];
    if (!shown || !layer) return;
    this.#layer = layer;
    this.#pages.query.element.hidden = !layer.cross;
    this.#pages.key.element.setAttribute("aria-label", layer.cross ? "Keys" : "Text");
    this.#units.update(this.#unit);
    this.#units.enable("word", layer.texts, UNKNOWN);
    const pins = pinnedIn(layer, state);
    this.#invitation.hidden = pins.query !== null || pins.key !== null;
    const { trace } = shown.meta;
    for (const side of SIDES) {
      const at = pins[side];
      const place = at === null ? null : at - shiftOf(layer, side);
      const path = place === null ? "" : paths.links(trace, shown.layer, shown.head, side, place, this.#unit);
      void this.#ask(side, path);
    }
    if (this.#unit === "word") void this.#readWords(shown);
    void this.#read(shown);
    for (const side of SIDES) if (this.#left) this.#pages[side].element.scrollTop = this.#left[side];
    this.#left = null;
    this.#find();
  }

  leave(): void {
    for (const latest of Object.values(this.#asking)) latest.stop();
    for (const side of SIDES) this.#asked[side] = null;
    if (this.element.dataset["state"] !== "ready") this.#asked.text = null;
    clearTimeout(this.#timer);
    this.#left = { query: this.#pages.query.element.scrollTop, key: this.#pages.key.element.scrollTop };
    this.#hover(null);
    this.#marks.clear();
  }

  act(action: Action): boolean {
    const [, step, name] = /^(next|previous)(Query|Key)$/.exec(action) ?? [];
    const page = pageOf(this.#layer, name === "Key" ? "key" : "query");
    if (step) this.#step(page, step === "next" ? 1 : -1);
    else if (action === "follow") this.#follow();
    else if (action === "pin") this.#pin(this.#hovered ?? { page, at: this.#pages[page].first() });
    else return false;
    return true;
  }

  get #unit(): Unit {
    return this.#state.words && this.#layer.texts ? "word" : "token";
  }

  get #sides(): readonly Side[] {
    return this.#layer.cross ? SIDES : ["key"];
  }

  /** The word of a token, or the tokens of its character. */
  #unitAt({ page, at }: Spot): [number, number] {
    const words = this.#unit === "word" ? this.#words[page] : undefined;
    if (!words) return this.#pages[page].together(at);
    const index = lastAtMost(words, at);
    return [words[index] ?? 0, words[index + 1] ?? lengthOf(this.#layer, page)];
  }

  #text(side: Side, start: number, stop: number): string | undefined {
    const page = pageOf(this.#layer, side);
    const { texts, from } = this.#pages[page];
    const found = start < from ? [] : texts.slice(start - from, stop - from);
    // What is not there yet comes with the text; only what lies outside of it is asked for.
    if (found.length === stop - start || texts.length === 0) return found.length > 0 ? found.join("") : undefined;
    const { meta, layer = 0 } = this.#shown ?? {};
    return meta && this.context.traces.textsOf(meta).get(layer, page, start);
  }

  #pin(spot: Spot): void {
    const at = this.#unit === "word" ? this.#unitAt(spot)[0] : spot.at;
    this.context.pins.toggle(pinning(this.#layer, spot.page, at));
  }

  #step(page: Side, by: number): void {
    const pins = pinnedIn(this.#layer, this.#state);
    const now = this.#layer.cross ? pins[page] : (pins.query ?? pins.key);
    const whole = this.#unit === "word";
    const [start, stop] = now === null ? [0, 0] : whole ? this.#unitAt({ page, at: now }) : [now, now + 1];
    const wanted = now === null ? this.#pages[page].first() : by > 0 ? stop : start - 1;
    const at = Math.max(0, Math.min(lengthOf(this.#layer, page) - 1, wanted));
    this.context.store.set(pinning(this.#layer, page, whole ? this.#unitAt({ page, at })[0] : at), "push");
  }

  #go(side: Side, at: number): void {
    const { pinQuery, pinKey } = this.#state;
    this.context.pins.go({ pinQuery, pinKey, ...pinning(this.#layer, pageOf(this.#layer, side), at) });
  }

  #follow(): void {
    const { query } = this.#links;
    const next = query?.links.find(
      ([start]) => (this.#layer.cross || start !== query.own[0]) && !(this.#state.hideSink && start === 0),
    );
    if (next) this.#go("key", next[0]);
    else this.context.notice("There is nothing to follow.");
  }

  async #read({ meta, layer: number }: Shown): Promise<void> {
    const { texts: known, cross, queries, keys } = this.#layer;
    const pins = pinnedIn(this.#layer, this.#state);
    const windows = this.#sides.map((page) => {
      const { from, texts } = this.#pages[page];
      const at = pins[page] ?? this.#state.centre?.[page] ?? 0;
      return windowOf(lengthOf(this.#layer, page), at, [from, from + texts.length]);
    });
    const wanted = this.#sides.map((page, index) => paths.text(meta.trace, number, page, ...(windows[index] ?? [0, 0])));
    if (this.#asked.text === wanted.join()) return;
    this.#asked.text = wanted.join();
    const signal = this.#asking.text.begin();
    // Without its mask a trace has the same text; layers of another shape may have another.
    const source = known ? [meta.origin ?? meta.trace, cross, queries, keys].join() : "";
    if (source !== this.#source) for (const side of SIDES) this.#pages[side].show([], 0);
    this.#source = source;
    this.element.dataset["state"] = "reading";
    if (!known) return this.#say(UNKNOWN);
    if (this.#pages.key.texts.length === 0) this.#say("Reading the text…");
    try {
      const texts = await Promise.all(wanted.map((path) => this.context.transport.json<string[]>(path, signal)));
      if (signal.aborted) return;
      const changed = this.#sides.filter((page, index) => this.#pages[page].show(texts[index] ?? [], windows[index]?.[0] ?? 0));
      this.#arrived();
      if (changed.length === 0) return;
      this.#seen = null;
      this.#find();
      const path = paths.sections(meta.trace, number, "key");
      // A text can be read without them.
      const sections = await this.context.transport.json<Section[]>(path, signal).catch(() => []);
      if (!signal.aborted) this.#showSections(sections);
    } catch (error) {
      if (aborted(error)) return;
      if (unanswered(error)) this.#asked.text = null;
      this.#say(told(error));
    }
  }

  #arrived(): void {
    const { from, texts } = this.#pages.key;
    const { keys } = this.#layer;
    const part = `Tokens ${counted(from)} to ${counted(from + texts.length - 1)} of ${counted(keys)}; go to a position to read elsewhere. `;
    this.#say((texts.length < keys ? part : "") + (highlights() ? "" : UNPAINTED));
    for (const side of SIDES) this.#tell(side, this.#links[side]);
    this.element.dataset["state"] = "ready";
  }

  #say(text: string): void {
    this.#note.textContent = text;
    this.#note.hidden = text === "";
  }

  #showSections(all: readonly Section[]): void {
    for (const [position, importance] of all) if (importance >= 0.8) this.#pages.key.head(position);
    const found = all
      .filter(([, importance]) => importance >= 0.5)
      .sort((one, other) => other[1] - one[1])
      .slice(0, MOST_SECTIONS)
      .sort((one, other) => one[0] - other[0]);
    replaceChildren(
      this.#sections,
      ...found.map(([position, , text]) => element("option", { value: position }, `${counted(position)} ${title(text)}`)),
    );
    this.#part.hidden = found.length < 2;
  }

  async #readWords({ meta, layer }: Shown): Promise<void> {
    const wanted = this.#sides.map((page) => paths.words(meta.trace, layer, page));
    if (this.#asked.words === wanted.join()) return;
    this.#asked.words = wanted.join();
    const signal = this.#asking.words.begin();
    this.#words = {};
    // Without them tokens are pointed at, while the lists count in words all the same.
    const found = await Promise.all(wanted.map((path) => this.context.transport.json<number[]>(path, signal))).catch(() => null);
    if (signal.aborted) this.#asked.words = null;
    else this.#words = Object.fromEntries(this.#sides.map((page, index) => [page, found?.[index]]));
  }

  async #ask(side: Side, path: string): Promise<void> {
    if (path === this.#asked[side]) return;
    this.#asked[side] = path;
    const signal = this.#asking[side].begin();
    if (path === "") return this.#tell(side, null);
    const stale = setTimeout(() => this.#tell(side, "reading…"), STALE);
    try {
      const links = await this.#answers.json<Links>(path, signal);
      if (signal.aborted) return;
      this.#tell(side, placed(this.#layer, side, links));
      this.context.say(SIDES.flatMap((one) => this.#spoken(one)).join("; "));
    } catch (error) {
      if (aborted(error)) return;
      if (unanswered(error)) this.#asked[side] = null;
      this.#tell(side, told(error));
    } finally {
      clearTimeout(stale);
    }
  }

  /** Links to list and to paint, or why there are none. */
  #tell(side: Side, found: Links | string | null): void {
    const links = typeof found === "string" ? null : found;
    this.#links[side] = links;
    this.#lists[side].show(found, this.#unit);
    const others = this.#pages[pageOf(this.#layer, otherOf(side))];
    this.#marks.weigh(side === "query" ? "out" : "in", others.ranges(links?.links ?? []));
    const { query, key } = this.#links;
    this.#mark("own-query", pageOf(this.#layer, "query"), query?.own);
    // In one text both are mostly the same token, which needs one mark.
    this.#mark("own-key", "key", this.#layer.cross || key?.own[0] !== query?.own[0] ? key?.own : undefined);
  }

  #mark(name: string, page: Side, tokens: readonly [number, number] | undefined): void {
    const range = tokens && this.#pages[page].range(...tokens);
    this.#marks.set(name, range ? [range] : []);
  }

  #spoken(side: Side): string[] {
    const { own, links } = this.#links[side] ?? {};
    const [first] = links ?? [];
    if (!own || !first) return [];
    const name = (of: Side, start: number, stop: number): string => named(of, start, this.#text(of, start, stop));
    const verb = side === "query" ? "looks most at" : "is looked at most by";
    return [`${name(side, ...own)} ${verb} ${name(otherOf(side), first[0], first[1])}, weight ${plain(first[2])}`];
  }

  /** Bring into view what is newly pinned, or the place that the address newly names. */
  #find(): void {
    if (this.#pages.key.texts.length === 0) return;
    const [before, { pinQuery, pinKey, centre }] = [this.#seen, this.#state];
    this.#seen = this.#state;
    const pins = pinnedIn(this.#layer, this.#state);
    const moved = { query: pinQuery !== (before?.pinQuery ?? null), key: pinKey !== (before?.pinKey ?? null) };
    for (const side of ["key", "query"] as const) {
      const at = pins[side];
      if (moved[side] && at !== null) this.#pages[pageOf(this.#layer, side)].reveal(at);
      else if (!moved.query && !moved.key && centre && centre[side] !== before?.centre?.[side])
        this.#pages[side].reveal(Math.floor(centre[side]), true);
    }
  }

  /** Scrolling has come to rest: the address names the place. */
  #rest(): void {
    if (this.#pages.key.texts.length === 0) return;
    const [query = 0, key = 0] = SIDES.map((side) => this.#pages[pageOf(this.#layer, side)].first());
    const starts = Array.from(this.#sections.options, ({ value }) => Number(value));
    this.#sections.selectedIndex = lastAtMost(starts, key);
    const centre = { query, key };
    this.#seen = { ...this.#state, centre };
    this.context.store.set({ centre });
  }

  #hover(spot: Spot | null): void {
    cancelAnimationFrame(this.#frame);
    if (spot?.at === this.#hovered?.at && spot?.page === this.#hovered?.page) return;
    this.#hovered = spot;
    this.#hint.hidden = spot === null;
    const [start, stop] = spot ? this.#unitAt(spot) : [0, 0];
    const { page } = spot ?? { page: "key" };
    this.#mark("hover", page, [start, stop]);
    const [box] = this.#pages[page].boxes(start, stop);
    const around = this.#hint.offsetParent?.getBoundingClientRect();
    if (!box || !around) return;
    replaceChildren(this.#hint, counted(start), stop > start + 1 && ` to ${counted(stop - 1)}`, ...this.#weights(page, start));
    this.#hint.style.left = `${Math.min(box.left - around.left, around.width - this.#hint.offsetWidth - 8)}px`;
    this.#hint.style.top = `${box.bottom - around.top + 6}px`;
  }

  /** What a token gets from the pinned one, and gives to it. */
  #weights(page: Side, start: number): HTMLElement[] {
    return SIDES.filter((side) => pageOf(this.#layer, otherOf(side)) === page).flatMap((side) => {
      const found = this.#links[side]?.links.find(([place]) => place === start);
      return found ? [element("span", {}, `${side === "query" ? "gets" : "gives"} ${plain(found[2])}`)] : [];
    });
  }
}
