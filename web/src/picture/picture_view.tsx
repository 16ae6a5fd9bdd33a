/**
 * The picture view: the image that the model was given, with what a patch or word attends to, or what attends to it.
 *
 * In: the state and the shown head. Out: pins and regions, which the map, the evidence and the ranking share.
 * Where patches are and their values come from the server; the panel draws them.
 */

import { render } from "preact";
import type { Action } from "../keys";
import { element } from "../panels/dom";
import type { CentreView, ViewContext } from "../panels/view_context";
import type { Patches, TraceHead, TraceImage } from "../server/protocol";
import { ResponseCache } from "../server/requests";
import type { State } from "../state";
import { ABSENT, findPatch, getPosition, toBox, toRuns, type Patch } from "./patch_values";
import { PicturePanel } from "./picture_panel";
import { choosePositions, type PictureState } from "./picture_state";

const MOVES: Readonly<Partial<Record<Action, readonly [down: number, right: number]>>> = {
  panLeft: [0, -1],
  panRight: [0, 1],
  panUp: [-1, 0],
  panDown: [1, 0],
  screenLeft: [0, -1],
  screenRight: [0, 1],
  screenUp: [-1, 0],
  screenDown: [1, 0],
};

export class PictureView implements CentreView {
  readonly element = element("div", { class: "picture-view", tabindex: -1 });
  readonly #cache: ResponseCache;
  #local: PictureState = { image: 0, frame: 0, cursor: null, corner: null, opacity: 0.8, oneScale: false };
  #state: State;
  #shown: TraceHead | null = null;
  /** Of the shown layer and image; null until it is loaded. */
  #patches: Patches | null = null;

  constructor(private readonly context: ViewContext) {
    const { store, transport, host, signal } = context;
    this.#state = store.get();
    this.#cache = new ResponseCache(transport, 32);
    host.onThemeChange(() => this.#render(), signal);
    this.element.addEventListener("focus", () => this.element.querySelector<HTMLElement>(".picture-main")?.focus());
    signal.addEventListener("abort", () => this.deactivate());
  }

  update(state: State, shown: TraceHead | null): void {
    if (shown?.meta !== this.#shown?.meta) this.#local = { ...this.#local, image: 0, frame: 0, cursor: null, corner: null };
    const isOtherPin = state.pinQuery !== this.#state.pinQuery || state.pinKey !== this.#state.pinKey;
    [this.#state, this.#shown] = [state, shown];
    if (isOtherPin) this.#showFrameOfPin();
    this.#render();
  }

  deactivate(): void {
    this.#local = { ...this.#local, cursor: null, corner: null };
    // Removing the panel cancels its requests.
    render(null, this.element);
  }

  handleAction(action: Action): boolean {
    const { cursor, corner } = this.#local;
    const move = MOVES[action];
    if (move) this.#moveCursor(move, action.startsWith("screen"));
    else if (action === "pin" && cursor) this.#choose(corner ?? cursor, cursor);
    else if (action === "unpin" && corner) this.#set({ corner: null });
    else return false;
    return true;
  }

  get #image(): TraceImage | undefined {
    return this.#shown?.meta.images[this.#local.image];
  }

  /** The patches that a click pins: keys where the picture is about a key, else queries. */
  get #side(): "query" | "key" {
    return this.#state.pictureKind === "key" || this.#state.pictureKind === "received" ? "key" : "query";
  }

  #set(change: Partial<PictureState>): void {
    this.#local = { ...this.#local, ...change };
    this.#render();
  }

  #render(): void {
    const shown = this.#shown;
    if (!shown) return render(null, this.element);
    const { context } = this;
    render(
      <PicturePanel
        {...{ context, shown, state: this.#state, local: this.#local, image: this.#image, cache: this.#cache }}
        set={(change) => this.#set(change)}
        choose={(from, to) => this.#choose(from, to)}
        pinPosition={(position) => this.#pin(position)}
        setPatches={(patches) => {
          this.#patches = patches;
        }}
      />,
      this.element,
    );
  }

  /** A pin on another frame of a video brings that frame. */
  #showFrameOfPin(): void {
    const { pinQuery, pinKey } = this.#state;
    const found = [[this.#patches?.query, pinQuery] as const, [this.#patches?.key, pinKey] as const].flatMap(([side, pin]) => (side && pin !== null ? (findPatch(side, pin) ?? []) : []));
    const frame = found[0]?.frame;
    if (frame !== undefined) this.#local = { ...this.#local, frame };
  }

  #moveCursor([down, right]: readonly [number, number], extends_: boolean): void {
    const side = this.#patches?.key ?? this.#patches?.query;
    if (!side) return;
    const [, rows, columns] = side.grid;
    const pin = this.#state.pinQuery ?? this.#state.pinKey;
    const start = this.#local.cursor ?? (pin === null ? null : findPatch(side, pin)) ?? { row: Math.floor(rows / 2) - down, column: Math.floor(columns / 2) - right };
    const cursor = {
      row: Math.min(rows - 1, Math.max(0, start.row + down)),
      column: Math.min(columns - 1, Math.max(0, start.column + right)),
    };
    this.#set({ cursor, corner: extends_ ? (this.#local.corner ?? { row: start.row, column: start.column }) : null });
    this.context.announce(`row ${cursor.row}, column ${cursor.column}`);
  }

  /** Pin a patch, or a region from one patch to another. */
  #choose(from: Patch, to: Patch): void {
    const { frame } = this.#local;
    this.#local = { ...this.#local, corner: null };
    if (from.row === to.row && from.column === to.column) {
      const side = this.#patches?.[this.#side];
      const position = side ? getPosition(side, frame, to) : ABSENT;
      return position === ABSENT ? this.context.showNotice("This layer does not have that patch.") : this.#pin(position);
    }
    const keys = this.#patches?.key;
    const region = keys ? toRuns(keys, frame, toBox(from, to)) : null;
    if (region === null) return this.context.showNotice(keys ? "This region has too many separate ranges of keys." : "The keys of this layer are not patches.");
    const { pinQuery, pinQueryEnd, pictureKind } = this.#state;
    const chosen = this.#patches && choosePositions(this.#state, this.#patches);
    const query = pinQuery ?? (chosen?.kind === "query" ? (chosen.positions?.[0] ?? null) : null);
    this.context.store.set(
      { pinQuery: query, pinQueryEnd, pinKey: null, region, question: "auto", pictureKind: pictureKind === "key" ? "query" : pictureKind },
      "push",
    );
  }

  #pin(position: number): void {
    const isKey = this.#side === "key";
    const isSame = this.#state[isKey ? "pinKey" : "pinQuery"] === position;
    const pins = isKey ? { pinKey: isSame ? null : position, pinQuery: null } : { pinQuery: isSame ? null : position, pinKey: null };
    const kind = this.#state.pictureKind === "received" ? { pictureKind: "key" as const } : {};
    this.context.store.set({ ...pins, ...kind }, "push");
  }
}
