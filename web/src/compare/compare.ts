/**
 * Two heads on the map: beside each other, on either side of the diagonal, or one divided by the other.
 *
 * In: the state with both heads; the map of the first. Out: a second map, or a second head in the first map, and a bar
 * above. Texts that differ are aligned by their tokens, so that moves and pins lead to the same words.
 */

import { createCompareBar, type CompareBar } from "./compare_bar";
import { createMapMoves } from "../key_handlers";
import { findAction, loadKeysEnabled } from "../keys";
import type { ViewPlace } from "../geometry/viewport";
import { CanvasMap, type Cell, type MapEvents, type MapView, type SecondHead } from "../map/map_view";
import type { Reading } from "../map/map_data";
import { formatPair } from "../map/pair_data";
import { formatTitle } from "../paint/token_text";
import { invertPairing, mapCell, mapPins, mapPlace, pairTokens, type TokenPairing } from "./token_pairing";
import { element } from "../panels/dom";
import { setMapDescription } from "../panels/live_region";
import type { Comparison, ViewContext } from "../panels/view_context";
import { readFloats } from "../server/tile_codec";
import { LatestRequest } from "../server/requests";
import { formatHeadName, paths, type Layer, type Meta, type TraceHead } from "../server/protocol";
import { getDefaultRange, swapHeads, type ComparedHead, type CompareMode, type HistoryMode, type State } from "../state";

export class HeadComparison implements Comparison {
  readonly secondSlot = element("div", { class: "map-slot beside", hidden: true });
  readonly #bar: CompareBar;
  readonly #metaRequest = new LatestRequest();
  readonly #weightRequest = new LatestRequest();
  secondMap: MapView | null = null;
  #one: TraceHead | null = null;
  #other: TraceHead | null = null;
  #pairing: TokenPairing | null = null;
  /** The place of B, kept when it is unlocked; and the place of A that followed from the last move of B. */
  #secondPlace: ViewPlace = { centre: null, zoom: null };
  #lastLockedMove: { readonly from: Cell; readonly to: Cell } | null = null;
  #pinnedWeights = { name: "", words: "" };
  #shared = "";

  constructor(
    private readonly context: ViewContext,
    private readonly map: MapView,
  ) {
    this.#bar = createCompareBar(context.store, context.session, () => this.swap());
    context.signal.addEventListener("abort", () => this.deactivate());
  }

  get bar(): HTMLElement {
    return this.#bar.element;
  }

  update(state: State, one: TraceHead | null): void {
    const { compare } = state;
    this.#one = one;
    if (!compare || !one) return this.deactivate();
    this.bar.hidden = false;
    const meta = this.#getMeta(compare, state);
    const there = meta && clampHead(meta, compare);
    if (there && (there.layer !== compare.layer || there.head !== compare.head)) return this.#updateCompared(there);
    const other = (this.#other = meta && { meta, layer: compare.layer, head: compare.head });
    const problems = explainUnsupportedModes(getLayer(one), other && getLayer(other));
    if (other && problems[compare.mode]) {
      this.context.showNotice(`${problems[compare.mode]} They are shown side by side.`);
      return this.#updateCompared({ mode: "side" });
    }
    const words = other ? this.#show(state, compare.mode, one, other) : ["Reading what B is\u2026"];
    this.#bar.update({ state, compare, one, meta, traces: this.#listTraces(state), problems, words });
  }

  deactivate(): void {
    this.#metaRequest.cancel();
    this.#weightRequest.cancel();
    this.#pinnedWeights = { name: "", words: "" };
    this.#other = this.#pairing = null;
    this.bar.hidden = true;
    this.#setShared("", null);
    this.#dropSecondMap();
  }

  swap(): void {
    const { store } = this.context;
    const state = store.get();
    const pairing = this.#pairing;
    store.set({
      ...swapHeads(state),
      ...(pairing && { ...mapPins(state, pairing), centre: state.centre && mapPlace(state.centre, pairing) }),
    });
  }

  onHover(cell: Cell | null): void {
    this.secondMap?.highlightCell(cell && this.#pairing && mapCell(cell, this.#pairing));
  }

  /** Correct what cannot be shown. */
  #updateCompared(part: Partial<ComparedHead>): void {
    const { compare } = this.context.store.get();
    if (compare) this.context.store.set({ compare: { ...compare, ...part } }, "replace");
  }

  /** The meta of B's trace; null while it is loading. */
  #getMeta({ trace }: ComparedHead, state: State): Meta | null {
    const { traces, store, showNotice } = this.context;
    const id = trace || state.trace;
    const own = traces.getKnown(id);
    const known = state.unmasked && own?.unmasked ? traces.getKnown(id, true) : own;
    if (known) return known;
    void this.#metaRequest.run(
      async () => {
        const { unmasked } = await traces.loadMeta(id);
        if (state.unmasked && unmasked !== null) await traces.loadMeta(unmasked);
      },
      () => this.update(store.get(), this.#one),
      (message) => {
        showNotice(`B cannot be shown: ${message}`);
        store.set({ compare: null }, "replace");
      },
    );
    return null;
  }

  /** The traces to choose from: those of the session, and those loaded since. */
  #listTraces({ trace, compare }: State): [string, string][] {
    const { session, traces } = this.context;
    const unnamed = [trace, compare?.trace || trace].map((known) => ({ trace: known, name: known }));
    const all = [...unnamed, ...session.traces, ...traces.listKnown()];
    return [...new Map(all.map((known) => [known.trace, known.name]))];
  }

  #show(state: State, mode: CompareMode, one: TraceHead, other: TraceHead): string[] {
    const formatName = (shown: TraceHead): string =>
      formatHeadName(shown.meta, shown.layer, shown.head) + (one.meta.trace === other.meta.trace ? "" : ` ${formatTitle(shown.meta.name, 24)}`);
    const names = [formatName(one), formatName(other)] as const;
    const pairing = pairTokens(this.context.traces, one, other, mode === "side", this.#pairing);
    if (pairing !== this.#pairing) this.#lastLockedMove = null;
    this.#pairing = pairing;
    if (mode === "side") {
      this.#setShared("", null);
      // The same colours in both, also where the range is left to the length of the text.
      const [range, own] = [one, other].map((shown) => getDefaultRange(getLayer(shown)?.keys ?? 0));
      this.#showSecondMap(String(range) === String(own) ? state : { ...state, range: state.range ?? range ?? null }, other, pairing, names);
    } else {
      this.#setShared([mode, getHeadKey(other), ...names].join(), { ...other, mode, names });
      this.#dropSecondMap();
    }
    return [pairing.message, this.#loadPinnedWeights(state, one, other, pairing)];
  }

  /** Set the second head of the map only when it changed, since the map then draws. */
  #setShared(name: string, other: SecondHead | null): void {
    if (name !== this.#shared) this.map.setSecondHead(other);
    this.#shared = name;
  }

  #showSecondMap(state: State, other: TraceHead, pairing: TokenPairing, [here, there]: readonly [string, string]): void {
    const fresh = this.secondMap === null;
    const secondMap = (this.secondMap ??= this.#createSecondMap());
    this.secondSlot.hidden = false;
    this.map.setRole({ name: `A ${here}`, unmatched: { query: pairing.query.unmatched, key: pairing.key.unmatched } });
    const back = invertPairing(pairing);
    secondMap.setRole({ name: `B ${there}`, unmatched: { query: back.query.unmatched, key: back.key.unmatched } });
    if (state.locked) {
      const { centre, zoom } = state;
      const led = centre && this.#lastLockedMove && isNear(centre, this.#lastLockedMove.to) ? this.#lastLockedMove.from : null;
      this.#secondPlace = { zoom, centre: led ?? (centre && mapPlace(centre, pairing)) };
    }
    secondMap.update({ ...state, ...mapPins(state, pairing), ...this.#secondPlace });
    if (secondMap.element.dataset["head"] !== getHeadKey(other)) secondMap.setHead(other.meta, other.layer, other.head);
    secondMap.element.dataset["head"] = getHeadKey(other);
    if (fresh) secondMap.resize();
  }

  #createSecondMap(): MapView {
    const { store, transport, traces, pictures, host, pins, showNotice } = this.context;
    const back = (): TokenPairing | null => this.#pairing && invertPairing(this.#pairing);
    const togglePins = (query: number | null, key: number | null): void => {
      const pairing = back();
      const found = Object.entries(pairing ? mapPins({ pinQuery: query, pinKey: key }, pairing) : {});
      const wanted = found.filter(([pin]) => (pin === "pinQuery" ? query : key) !== null);
      if (wanted.some(([, place]) => place === null)) showNotice("This token of B has no partner in A.");
      else pins.toggle(Object.fromEntries(wanted));
    };
    const events: MapEvents = {
      onMove: (place, how) => this.#onMove(place, how, back()),
      onHover: (cell: Cell | null) => this.map.highlightCell(cell && mapCell(cell, back())),
      onPickCell: ({ query, key }: Cell) => togglePins(query, key),
      onPickQuery: (query: number) => togglePins(query, null),
      onPickKey: (key: number) => togglePins(null, key),
    };
    const secondMap = new CanvasMap(transport, events, {
      ...{ host, pictures },
      getTokens: (side, from, to) =>
        this.#other ? traces.getTexts(this.#other.meta).getRange(this.#other.layer, side, from, to) : undefined,
    });
    setMapDescription(secondMap.element);
    secondMap.element.setAttribute("aria-roledescription", "map of B");
    // While locked, keys move A, and B follows.
    const moves: Partial<Record<string, () => void>> = createMapMoves(secondMap);
    secondMap.element.addEventListener("keydown", (event) => {
      const move = loadKeysEnabled() && !store.get().locked && moves[findAction(event) ?? ""];
      if (!move) return;
      event.preventDefault();
      move();
    });
    this.secondSlot.append(secondMap.element);
    return secondMap;
  }

  #dropSecondMap(): void {
    if (!this.secondMap) return;
    this.secondMap.destroy();
    this.secondMap = null;
    this.secondSlot.hidden = true;
    this.map.setRole(null);
    this.map.highlightCell(null);
  }

  #onMove(place: ViewPlace, how: HistoryMode, back: TokenPairing | null): void {
    const { centre: from, zoom } = (this.#secondPlace = place);
    if (!this.context.store.get().locked) return;
    const to = from && back && mapPlace(from, back);
    this.#lastLockedMove = from && to && { from, to };
    this.context.store.set({ centre: to, zoom }, how);
  }

  /** The exact weights of the pinned pair in both; "" until they are there. */
  #loadPinnedWeights({ pinQuery: query, pinKey: key }: State, one: TraceHead, other: TraceHead, pairing: TokenPairing): string {
    if (query === null || key === null || pairing.isLoading) return "";
    const pair = mapCell({ query, key }, pairing);
    if (!pair) return "The pinned pair is not in both.";
    const name = [getHeadKey(one), getHeadKey(other), query, key].join();
    if (name === this.#pinnedWeights.name) return this.#pinnedWeights.words;
    this.#pinnedWeights = { name, words: "" };
    const load = async ({ meta, layer, head }: TraceHead, cell: Cell, signal: AbortSignal): Promise<Reading> => {
      const path = paths.cells(meta.trace, layer, head, cell.query, cell.query + 1, cell.key, cell.key + 1);
      const body = await this.context.transport.bytes(path, signal);
      const value = body ? (readFloats(body).values[0] ?? NaN) : NaN;
      return { value: Number.isNaN(value) ? null : value, exact: true };
    };
    void this.#weightRequest.run(
      (signal) => Promise.all([load(one, { query, key }, signal), load(other, pair, signal)]),
      (both) => {
        this.#pinnedWeights = { name, words: `Pinned: ${formatPair(...both)}.` };
        this.update(this.context.store.get(), this.#one);
      },
      // The maps still show both.
      () => undefined,
    );
    return "";
  }
}

function getHeadKey({ meta, layer, head }: TraceHead): string {
  return `${meta.trace}/${layer}/${head}`;
}

function getLayer({ meta, layer }: TraceHead): Layer | undefined {
  return meta.layers[layer];
}

/** Why two heads cannot be shown so; "" where they can. */
function explainUnsupportedModes(one: Layer | undefined, other: Layer | null | undefined): Readonly<Record<CompareMode, string>> {
  const same = one && one.queries === other?.queries && one.keys === other.keys;
  const square = same && one.queries === one.keys && one.causal && other.causal;
  return {
    side: "",
    split: square ? "" : "Only two causal heads of one length share a square.",
    ratio: same ? "" : "Only two heads of one size have a ratio.",
  };
}

function clampHead({ layers }: Meta, { layer, head }: ComparedHead): Pick<ComparedHead, "layer" | "head"> {
  const inside = Math.min(layer, layers.length - 1);
  return { layer: inside, head: Math.min(head, (layers[inside]?.heads ?? 1) - 1) };
}

/** An address is rounded to hundredths. */
function isNear(one: Cell, other: Cell): boolean {
  return Math.max(Math.abs(one.query - other.query), Math.abs(one.key - other.key)) < 0.01;
}
