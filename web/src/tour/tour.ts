/**
 * A tour of one minute: a card that goes from part to part and shows each on the shipped example.
 *
 * It can be left at any time and restores the state; at its end it stays on the example, to try it. The invitation is shown once.
 */

import { button, element } from "../panels/dom";
import type { ViewContext } from "../panels/view_context";
import { loadItem, saveItem } from "../browser_storage";
import type { State } from "../state";
import { placeBeside } from "./card_placement";
import { STEPS } from "./steps";

const STORAGE_NAME = "tour";

export class Tour {
  /** A line that offers the tour. */
  readonly invitation: HTMLElement;
  readonly card: HTMLElement;
  readonly #count = element("p", { class: "soft" });
  readonly #title = element("h2", { id: "tour-title" });
  readonly #says = element("p", { id: "tour-says", "aria-live": "polite" });
  readonly #back = button("Back", () => this.#showStep(this.#step - 1));
  readonly #next = button("", () => this.#showStep(this.#step + 1), { class: "primary" });
  readonly #observer = new ResizeObserver(() => this.#placeCard());
  #step = 0;
  #target: HTMLElement | null = null;
  /** The state and the focus before the tour. */
  #before: { readonly state: State; readonly focus: Element | null } | null = null;

  constructor(
    private readonly context: ViewContext,
    private readonly root: HTMLElement,
  ) {
    this.invitation = element(
      "aside",
      { class: "bar invitation", "aria-label": "Tour", hidden: !this.canInvite || loadItem("local", STORAGE_NAME) !== null },
      element("span", {}, "New here? A tour of one minute."),
      button("Start", () => this.start(), { class: "primary" }),
      button("Not now", () => this.#dismissInvitation()),
    );
    this.card = element(
      "section",
      {
        ...{ class: "tour", role: "dialog", tabindex: -1, hidden: true },
        ...{ "aria-labelledby": "tour-title", "aria-describedby": "tour-says" },
      },
      this.#count,
      this.#title,
      this.#says,
      element("div", { class: "tour-steps" }, button("Leave", () => this.end()), this.#back, this.#next),
    );
    this.card.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") this.end();
      else if (by) this.#showStep(Math.max(0, this.#step + by));
      else return;
      event.preventDefault();
    });
    context.signal.addEventListener("abort", () => this.#observer.disconnect());
  }

  /** Only the page shows the invitation; elsewhere the tour is under Help. */
  get canInvite(): boolean {
    return this.isPossible && this.context.host.kind === "page";
  }

  get isPossible(): boolean {
    return this.context.session.example !== null;
  }

  get isRunning(): boolean {
    return this.#before !== null;
  }

  start(): void {
    this.#dismissInvitation();
    const page = this.root.getRootNode() as Document | ShadowRoot;
    this.#before ??= { state: this.context.store.get(), focus: page.activeElement };
    this.card.hidden = false;
    this.#showStep(0);
    this.card.focus({ preventScroll: true });
  }

  end(): void {
    const before = this.#before;
    if (!before) return;
    this.#before = null;
    this.card.hidden = true;
    this.#pointAt(null);
    this.context.store.set(before.state, "replace");
    if (before.focus instanceof HTMLElement && before.focus.isConnected) before.focus.focus({ preventScroll: true });
  }

  #dismissInvitation(): void {
    this.invitation.hidden = true;
    saveItem("local", STORAGE_NAME, "yes");
  }

  #showStep(number: number): void {
    const step = STEPS[number];
    if (!step) {
      const last = this.context.store.get();
      this.end();
      // Back leads to where the reader was.
      return this.context.store.set(last, "push");
    }
    this.#step = number;
    this.#count.textContent = `Tour, ${number + 1} of ${STEPS.length}`;
    this.#title.textContent = step.title;
    this.#says.textContent = step.text;
    this.#back.disabled = number === 0;
    this.#next.textContent = number + 1 < STEPS.length ? "Next" : "Done";
    const { example } = this.context.session;
    this.context.store.set({ ...PLAIN_STATE, trace: example ?? "", ...step.state }, "replace");
    this.#pointAt(this.root.querySelector<HTMLElement>(step.selector));
  }

  #pointAt(target: HTMLElement | null): void {
    this.#observer.disconnect();
    this.#target?.classList.remove("toured");
    this.#target = target;
    if (!target) return;
    target.classList.add("toured");
    // What stands around it moves it.
    for (const part of [this.root, ...(target.parentElement?.children ?? [])]) this.#observer.observe(part);
    this.#placeCard();
    target.scrollIntoView({ block: this.card.classList.contains("beside") ? "nearest" : "start" });
  }

  #placeCard(): void {
    if (!this.#target) return;
    const all = this.root.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.card;
    const place = placeBeside(this.#target.getBoundingClientRect(), { width, height }, all);
    this.card.classList.toggle("beside", place !== null);
    if (!place) return;
    this.card.style.left = `${place.left - all.left}px`;
    this.card.style.top = `${place.top - all.top}px`;
  }
}

/** Resets what the reader has chosen, so that the example is shown plainly. */
const PLAIN_STATE: Partial<State> = {
  ...{ view: "map", layer: 0, head: 0, centre: null, zoom: null, pinQuery: null, pinKey: null },
  ...{ unmasked: false, hideSink: false, compare: null, range: null, scale: "auto" },
};
