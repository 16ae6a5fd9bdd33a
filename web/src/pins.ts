/** The pinned query and key: set them, step them, follow attention from token to token and back. */

import type { Cell, MapView } from "./map/map_view";
import type { Link } from "./questions/head_question";
import type { Positions } from "./questions/parse_question";
import type { MatrixShape, QueryReport, Side } from "./server/protocol";
import type { State, Store } from "./state";

export type PinState = Pick<State, "pinQuery" | "pinKey">;

const MAX_TRAIL = 200;

export class Pins {
  #trail: PinState[] = [];

  constructor(
    private readonly store: Store,
    private readonly map: MapView,
    private readonly getShape: () => MatrixShape | undefined,
    /** The report on the pinned query; null until it is loaded. */
    private readonly getReport: () => QueryReport | null,
    private readonly showNotice: (text: string) => void,
  ) {}

  get canGoBack(): boolean {
    return this.#trail.length > 0;
  }

  pin(side: Side, position: number | null): void {
    this.#set(side === "query" ? { pinQuery: position } : { pinKey: position });
  }

  /** Go to a query, and bring its own key into view: most attention is near it. */
  goToQuery(query: number): void {
    this.#set({ pinQuery: query, pinKey: null }, this.#findOwnKey(query));
  }

  /** Pin tokens or spans of one side, and leave the other as it is. */
  pinSpan(side: Side, { first, last }: Positions): void {
    const end = last > first ? last : null;
    if (side === "key") this.#set({ pinKey: first, pinKeyEnd: end });
    // Most attention is near the query itself.
    else this.#set({ pinQuery: first, pinQueryEnd: end }, this.#findOwnKey(first));
  }

  /** Pin both sides; null removes a pin. */
  pinLink({ query, key }: Link): void {
    const endOf = (positions: Positions | null): number | null => (positions && positions.last > positions.first ? positions.last : null);
    this.#set(
      { pinQuery: query?.first ?? null, pinQueryEnd: endOf(query), pinKey: key?.first ?? null, pinKeyEnd: endOf(key) },
      this.#findOwnKey(query?.first ?? null),
    );
  }

  pinCell({ query, key }: Cell): void {
    this.#set({ pinQuery: query, pinKey: key });
  }

  /** Pin, or unpin what is already pinned. The view stays, since the clicked cell is in it. */
  toggle(wanted: Partial<PinState>): void {
    const now = this.store.get();
    const isSame = (Object.keys(wanted) as (keyof PinState)[]).every((pin) => now[pin] === wanted[pin]);
    const none = Object.fromEntries(Object.keys(wanted).map((pin) => [pin, null]));
    this.store.set(isSame ? none : wanted, "push");
  }

  unpin(): void {
    this.store.set({ pinQuery: null, pinKey: null }, "push");
  }

  /** The next token along a side, or the middle of the view when none is pinned yet. */
  step(side: Side, by: number): void {
    const shape = this.getShape();
    if (!shape) return;
    const now = this.store.get()[side === "query" ? "pinQuery" : "pinKey"];
    const wanted = now === null ? this.getMiddle()[side] : now + by;
    const last = (side === "query" ? shape.queries : shape.keys) - 1;
    this.pin(side, Math.min(last, Math.max(0, wanted)));
  }

  getMiddle(): Cell {
    const { query, key } = this.map.visible();
    return { query: Math.floor((query[0] + query[1]) / 2), key: Math.floor((key[0] + key[1]) / 2) };
  }

  follow(): void {
    const { pinQuery, hideSink } = this.store.get();
    const [shape, report] = [this.getShape(), this.getReport()];
    if (!shape || !report || pinQuery === null)
      return this.showNotice("Pin a query first; then f follows its strongest key.");
    const next = findFollowTarget(report, shape, hideSink);
    if (!next) return this.showNotice("This query attends only to itself.");
    this.goTo(next);
  }

  /** Pin another place; `back` returns to the one before. */
  goTo(next: PinState): void {
    const { pinQuery, pinKey } = this.store.get();
    if (pinQuery !== null || pinKey !== null)
      this.#trail = [...this.#trail, { pinQuery, pinKey }].slice(-MAX_TRAIL);
    this.#set(next, this.#findOwnKey(next.pinQuery));
  }

  back(): void {
    const before = this.#trail.pop();
    if (before) this.#set(before, this.#findOwnKey(before.pinQuery));
    else this.showNotice("Nothing was followed yet.");
  }

  clearTrail(): void {
    this.#trail = [];
  }

  #findOwnKey(query: number | null): number | undefined {
    const shape = this.getShape();
    return query === null || !shape || shape.cross ? undefined : query + shape.offset;
  }

  /** Set pins and bring them into view; without a pinned key, `key` is brought into view if given. */
  #set(pins: Partial<State>, key?: number): void {
    this.store.set(pins, "push");
    const { pinQuery, pinKey, view } = this.store.get();
    const middle = this.getMiddle();
    // Other views place their pins themselves.
    if ((pinQuery !== null || pinKey !== null) && (view === "map" || view === "sentence"))
      this.map.reveal({ query: pinQuery ?? middle.query, key: pinKey ?? key ?? middle.key });
  }
}

/**
 * The pins after following the strongest key of a query: that token as a query. A token that attends mostly to itself
 * leads to the next strongest, and a hidden sink is skipped. In cross-attention a key has no query, so the key is pinned.
 */
export function findFollowTarget(report: QueryReport, shape: MatrixShape, hideSink: boolean): PinState | null {
  const own = report.position + shape.offset;
  const found = report.strongest.find(([key]) => (shape.cross || key !== own) && !(hideSink && key === 0));
  if (!found) return null;
  const asQuery = found[0] - shape.offset;
  if (shape.cross || asQuery < 0 || asQuery >= shape.queries) return { pinQuery: report.position, pinKey: found[0] };
  return { pinQuery: asQuery, pinKey: null };
}
