/**
 * Two heads on the map: beside each other, on either side of the diagonal, or one divided by the other.
 *
 * In: the state, which names both; the map of the first. Out: the second map or the second head in the first, and a bar
 * that says which is which. Texts that differ are aligned by their tokens, so that moves and pins lead to the same words.
 */

import { createBar, type Bar } from "./compare_bar";
import { movesOf } from "../key_handlers";
import { actionOf, keysEnabled } from "../keys";
import { createMapView, type Cell, type MapView, type Shared } from "../map/map_view";
import type { Reading } from "../map/map_data";
import { beside } from "../map/pair_data";
import { title } from "../paint/token_text";
import { backwards, pairingOf, partnerOf, pinsOf, placeOf, type Pairing } from "./token_pairing";
import { element } from "../panels/dom";
import type { Shown } from "../panels/inspector";
import { describeMap } from "../panels/live_region";
import type { Comparison, ViewContext } from "../panels/view_context";
import { readFloats } from "../server/tile_codec";
import { Latest, told } from "../server/requests";
import { headName, paths, type Layer, type Meta } from "../server/protocol";
import { ranged, swapped, type Compared, type CompareMode, type State } from "../state";

type Place = Pick<State, "centre" | "zoom">;

export function createCompare(context: ViewContext, map: MapView): Comparison {
  return new TwoHeads(context, map);
}

class TwoHeads implements Comparison {
  readonly beside = element("div", { class: "map-slot beside", hidden: true });
  readonly #bar: Bar;
  readonly #reading = new Latest();
  readonly #weighing = new Latest();
  twin: MapView | null = null;
  #one: Shown | null = null;
  #other: Shown | null = null;
  #pairing: Pairing | null = null;
  /** Where B is, to stay there when it is let loose; and which place of A's a move of B became. */
  #own: Place = { centre: null, zoom: null };
  #led: { readonly from: Cell; readonly to: Cell } | null = null;
  #weighed = { name: "", words: "" };
  #shared = "";

  constructor(
    private readonly context: ViewContext,
    private readonly map: MapView,
  ) {
    this.#bar = createBar(context.store, context.session, () => this.swap());
    context.signal.addEventListener("abort", () => this.leave());
  }

  get bar(): HTMLElement {
    return this.#bar.element;
  }

  update(state: State, one: Shown | null): void {
    const { compare } = state;
    this.#one = one;
    if (!compare || !one) return this.leave();
    this.bar.hidden = false;
    const meta = this.#metaOf(compare, state);
    const there = meta && nearest(meta, compare);
    if (there && (there.layer !== compare.layer || there.head !== compare.head)) return this.#choose(there);
    const other = (this.#other = meta && { meta, layer: compare.layer, head: compare.head });
    const why = whyNot(layerOf(one), other && layerOf(other));
    if (other && why[compare.mode]) {
      this.context.notice(`${why[compare.mode]} They are shown side by side.`);
      return this.#choose({ mode: "side" });
    }
    const words = other ? this.#show(state, compare.mode, one, other) : ["Reading what B is\u2026"];
    this.#bar.update({ state, compare, one, meta, traces: this.#traces(state), why, words });
  }

  leave(): void {
    this.#reading.stop();
    this.#weighing.stop();
    this.#weighed = { name: "", words: "" };
    this.#other = this.#pairing = null;
    this.bar.hidden = true;
    this.#share("", null);
    this.#dropTwin();
  }

  swap(): void {
    const { store } = this.context;
    const state = store.get();
    const pairing = this.#pairing;
    store.set({
      ...swapped(state),
      ...(pairing && { ...pinsOf(state, pairing), centre: state.centre && placeOf(state.centre, pairing) }),
    });
  }

  pointed(cell: Cell | null): void {
    this.twin?.point(cell && this.#pairing && partnerOf(cell, this.#pairing));
  }

  #choose(part: Partial<Compared>): void {
    const { compare } = this.context.store.get();
    if (compare) this.context.store.set({ compare: { ...compare, ...part } });
  }

  /** What B's trace is; asked for, when it is not known yet. */
  #metaOf({ trace }: Compared, state: State): Meta | null {
    const { traces, store, notice } = this.context;
    const id = trace || state.trace;
    const own = traces.known(id);
    const known = state.whatIf && own?.what_if ? traces.known(id, true) : own;
    if (known) return known;
    const signal = this.#reading.begin();
    const read = async (): Promise<void> => {
      const { what_if: whatIf } = await traces.meta(id);
      if (state.whatIf && whatIf !== null) await traces.meta(whatIf);
      if (!signal.aborted) this.update(store.get(), this.#one);
    };
    read().catch((error: unknown) => {
      if (signal.aborted) return;
      notice(`B cannot be shown: ${told(error)}`);
      store.set({ compare: null });
    });
    return null;
  }

  /** What there is to choose from: what the session began with, and what was read since. */
  #traces({ trace, compare }: State): [string, string][] {
    const { session, traces } = this.context;
    const unnamed = [trace, compare?.trace || trace].map((known) => ({ trace: known, name: known }));
    const all = [...unnamed, ...session.traces, ...traces.seen()];
    return [...new Map(all.map((known) => [known.trace, known.name]))];
  }

  #show(state: State, mode: CompareMode, one: Shown, other: Shown): string[] {
    const name = (shown: Shown): string =>
      headName(shown.meta, shown.layer, shown.head) + (one.meta.trace === other.meta.trace ? "" : ` ${title(shown.meta.name, 24)}`);
    const names = [name(one), name(other)] as const;
    const pairing = pairingOf(this.context.traces, one, other, mode === "side", this.#pairing);
    if (pairing !== this.#pairing) this.#led = null;
    this.#pairing = pairing;
    if (mode === "side") {
      this.#share("", null);
      // The same colours in both, also where the range is left to the length of the text.
      this.#showBeside(ranged(state, layerOf(one)?.keys ?? 0), other, pairing, names);
    } else {
      this.#share([mode, nameOf(other), ...names].join(), { ...other, mode, names });
      this.#dropTwin();
    }
    return [pairing.words, this.#weigh(state, one, other, pairing)];
  }

  /** Only what is new is told: a map that is told draws. */
  #share(name: string, other: Shared | null): void {
    if (name !== this.#shared) this.map.share(other);
    this.#shared = name;
  }

  #showBeside(state: State, other: Shown, pairing: Pairing, [here, there]: readonly [string, string]): void {
    const fresh = this.twin === null;
    const twin = (this.twin ??= this.#createTwin());
    this.beside.hidden = false;
    this.map.setRole({ name: `A ${here}`, alone: { query: pairing.query.alone, key: pairing.key.alone } });
    const back = backwards(pairing);
    twin.setRole({ name: `B ${there}`, alone: { query: back.query.alone, key: back.key.alone } });
    if (state.locked) {
      const { centre, zoom } = state;
      const led = centre && this.#led && near(centre, this.#led.to) ? this.#led.from : null;
      this.#own = { zoom, centre: led ?? (centre && placeOf(centre, pairing)) };
    }
    twin.update({ ...state, ...pinsOf(state, pairing), ...this.#own });
    if (twin.element.dataset["head"] !== nameOf(other)) twin.setHead(other.meta, other.layer, other.head);
    twin.element.dataset["head"] = nameOf(other);
    if (fresh) twin.resize();
  }

  #createTwin(): MapView {
    const { store, transport, traces, host, pins, notice } = this.context;
    const back = (): Pairing | null => this.#pairing && backwards(this.#pairing);
    const pick = (query: number | null, key: number | null): void => {
      const pairing = back();
      const found = Object.entries(pairing ? pinsOf({ pinQuery: query, pinKey: key }, pairing) : {});
      const wanted = found.filter(([pin]) => (pin === "pinQuery" ? query : key) !== null);
      if (wanted.some(([, place]) => place === null)) notice("This token of B has no partner in A.");
      else pins.toggle(Object.fromEntries(wanted));
    };
    const on = {
      moved: (centre: Cell | null, zoom: number | null) => this.#moved(centre, zoom, back()),
      hovered: (cell: Cell | null) => this.map.point(cell && partnerOf(cell, back())),
      picked: ({ query, key }: Cell) => pick(query, key),
      pickedQuery: (query: number) => pick(query, null),
      pickedKey: (key: number) => pick(null, key),
    };
    const twin = createMapView(transport, on, {
      host,
      tokens: (side, from, to) =>
        this.#other ? traces.textsOf(this.#other.meta).range(this.#other.layer, side, from, to) : undefined,
    });
    describeMap(twin.element);
    twin.element.setAttribute("aria-roledescription", "map of B");
    // Locked, the keys move A, and B goes along.
    const moves: Partial<Record<string, () => void>> = movesOf(twin);
    twin.element.addEventListener("keydown", (event) => {
      const move = keysEnabled() && !store.get().locked && moves[actionOf(event) ?? ""];
      if (!move) return;
      event.preventDefault();
      move();
    });
    this.beside.append(twin.element);
    return twin;
  }

  #dropTwin(): void {
    if (!this.twin) return;
    this.twin.destroy();
    this.twin = null;
    this.beside.hidden = true;
    this.map.setRole(null);
    this.map.point(null);
  }

  #moved(from: Cell | null, zoom: number | null, back: Pairing | null): void {
    this.#own = { centre: from, zoom };
    if (!this.context.store.get().locked) return;
    const to = from && back && placeOf(from, back);
    this.#led = from && to && { from, to };
    this.context.store.set({ centre: to, zoom });
  }

  /** The exact weights of the pinned pair in both; "" until they are there. */
  #weigh({ pinQuery: query, pinKey: key }: State, one: Shown, other: Shown, pairing: Pairing): string {
    if (query === null || key === null || pairing.reading) return "";
    const pair = partnerOf({ query, key }, pairing);
    if (!pair) return "The pinned pair is not in both.";
    const name = [nameOf(one), nameOf(other), query, key].join();
    if (name === this.#weighed.name) return this.#weighed.words;
    this.#weighed = { name, words: "" };
    const signal = this.#weighing.begin();
    const weight = async ({ meta, layer, head }: Shown, cell: Cell): Promise<Reading> => {
      const path = paths.cells(meta.trace, layer, head, cell.query, cell.query + 1, cell.key, cell.key + 1);
      const body = await this.context.transport.bytes(path, signal);
      const value = body ? (readFloats(body).values[0] ?? NaN) : NaN;
      return { value: Number.isNaN(value) ? null : value, exact: true };
    };
    Promise.all([weight(one, { query, key }), weight(other, pair)]).then(
      (both) => {
        if (signal.aborted) return;
        this.#weighed = { name, words: `Pinned: ${beside(...both)}.` };
        this.update(this.context.store.get(), this.#one);
      },
      // The maps still show both.
      () => undefined,
    );
    return "";
  }
}

function nameOf({ meta, layer, head }: Shown): string {
  return `${meta.trace}/${layer}/${head}`;
}

function layerOf({ meta, layer }: Shown): Layer | undefined {
  return meta.layers[layer];
}

/** Why two heads cannot be shown so; "" where they can. */
function whyNot(one: Layer | undefined, other: Layer | null | undefined): Readonly<Record<CompareMode, string>> {
  const same = one && one.queries === other?.queries && one.keys === other.keys;
  const square = same && one.queries === one.keys && one.causal && other.causal;
  return {
    side: "",
    split: square ? "" : "Only two causal heads of one length share a square.",
    ratio: same ? "" : "Only two heads of one size have a ratio.",
  };
}

function nearest({ layers }: Meta, { layer, head }: Compared): Pick<Compared, "layer" | "head"> {
  const inside = Math.min(layer, layers.length - 1);
  return { layer: inside, head: Math.min(head, (layers[inside]?.heads ?? 1) - 1) };
}

/** An address is rounded to hundredths. */
function near(one: Cell, other: Cell): boolean {
  return Math.max(Math.abs(one.query - other.query), Math.abs(one.key - other.key)) < 0.01;
}
