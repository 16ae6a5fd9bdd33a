/**
 * Where the explorer opens, and what is in the text.
 *
 * In: a trace. Out: the head to begin with, and a card per label; calls `onChange` when more is known.
 * The server scores the text in the background, so the answer is polled until the whole text is scored.
 */

import { LatestRequest } from "../server/requests";
import { paths, type Finding, type Opening } from "../server/protocol";
import type { Transport } from "../server/transport";
import type { State, Store } from "../state";

const [FIRST_POLL_MILLISECONDS, LAST_POLL_MILLISECONDS] = [500, 4000];
/** A page waits so long for the head to begin with, before it shows any. */
const WAIT_MILLISECONDS = 400;

export interface OpeningOptions {
  readonly root: HTMLElement;
  readonly store: Store;
  /** What is known when the page opens; undefined where the address names a head. */
  readonly opening?: Opening | null | undefined;
  readonly signal: AbortSignal;
}

/** Goes to the head to begin with, unless the reader does something first. */
export class OpeningGuide {
  answer: Opening | null;
  readonly #request = new LatestRequest();
  #trace = "";
  #mayMove: boolean;
  #isMoving = false;

  constructor(
    private readonly transport: Transport,
    private readonly options: OpeningOptions,
    private readonly onChange: () => void,
  ) {
    const { root, store, opening, signal } = options;
    this.answer = opening ?? null;
    this.#mayMove = opening === null || opening?.pending === true;
    const stay = (): void => {
      this.#mayMove = false;
    };
    for (const type of ["pointerdown", "keydown", "wheel"]) root.addEventListener(type, stay, { capture: true, passive: true, signal });
    const leave = store.subscribe((now, before, how) => {
      if (!this.#isMoving && how === "push" && CHOSEN.some((name) => now[name] !== before[name])) stay();
    });
    signal.addEventListener("abort", () => {
      this.#request.cancel();
      leave();
    });
  }

  /** Whether the page may still go to another head. */
  get isSearching(): boolean {
    return this.#mayMove;
  }

  show(finding: Finding): void {
    this.options.store.set({ ...showFinding(finding), view: "map", centre: null, zoom: null }, "push");
  }

  /** Read what is in a trace, once. */
  load(trace: string): void {
    if (trace === "" || trace === this.#trace) return;
    const isFirst = this.#trace === "";
    this.#trace = trace;
    if (isFirst && this.answer && !this.answer.pending) return;
    if (!isFirst) this.answer = null;
    this.#request.cancel();
    void this.#request.run(
      async (signal) => {
        for (let pause = FIRST_POLL_MILLISECONDS; ; pause = Math.min(2 * pause, LAST_POLL_MILLISECONDS)) {
          const answer = await this.transport.json<Opening>(paths.opening(trace), signal);
          signal.throwIfAborted();
          this.answer = answer;
          this.#follow(answer);
          this.onChange();
          if (!answer.pending) return;
          await new Promise((resolve) => setTimeout(resolve, pause));
          signal.throwIfAborted();
        }
      },
      () => undefined,
      // Without it the explorer shows the first head and no cards.
      () => {
        this.#mayMove = false;
        this.onChange();
      },
    );
  }

  #follow({ opening, pending }: Opening): void {
    if (!this.#mayMove) return;
    this.#isMoving = true;
    if (opening) this.options.store.set(showFinding(opening), "replace");
    this.#isMoving = false;
    if (!pending) this.#mayMove = false;
  }
}

/** What the reader may choose before the opening is known. */
const CHOSEN = ["trace", "layer", "head", "view", "pinQuery", "pinKey", "centre", "zoom", "compare"] as const;

/** The answer if it comes at once; null otherwise. */
export async function loadOpeningSoon(transport: Transport, trace: string, signal: AbortSignal): Promise<Opening | null> {
  const answer = transport.json<Opening>(paths.opening(trace), signal).catch(() => null);
  return Promise.race([answer, new Promise<null>((resolve) => setTimeout(() => resolve(null), WAIT_MILLISECONDS))]);
}

/** Whether a head and its link are what is shown. */
export function isShown({ layer, head, query, key }: Finding, state: State): boolean {
  return state.layer === layer && state.head === head && state.pinQuery === query && state.pinKey === key;
}

/** The state that shows a head and its link on the map. */
export function showFinding({ layer, head, query, key }: Finding): Partial<State> {
  return { layer, head, pinQuery: query, pinKey: key };
}
