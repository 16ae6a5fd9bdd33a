/**
 * Type a sentence: a text box, examples, and the model's attention on what was typed, beside that of its untrained twin.
 *
 * In: typing. Out: traces that the server made of it. The matrix itself is the same map as everywhere, put in `slot`.
 */

import { button, element, replaceChildren } from "./dom";
import { Generation } from "./generation_panel";
import type { Surroundings } from "../host";
import { Latest, told } from "../server/requests";
import type { MapView } from "../map/map_view";
import { counted, plural } from "../format_numbers";
import { title } from "../paint/token_text";
import { paths, type Meta, type Session, type Summary } from "../server/protocol";
import { ranged, type State } from "../state";
import { aborted, type Transport } from "../server/transport";

const PAUSE = 400;

export interface Twin {
  readonly map: MapView;
  /** Whose tokens name the axes. */
  setMeta(meta: Meta): void;
}

export interface SentenceActions {
  state(): State;
  /** A run is there: show its trace. */
  ran(trace: string): void;
  openAsMap(): void;
  meta(trace: string): Promise<Meta>;
  /** A second map that shares all pins and moves; made when first wanted. */
  createTwin(): Twin;
  say(text: string): void;
}

export class SentenceView {
  readonly form: HTMLElement;
  /** Where the map of the typed text goes. */
  readonly slot = element("div", { class: "map-slot" });
  readonly stage: HTMLElement;
  readonly below: HTMLElement;
  readonly #box = element("textarea", { rows: 2, id: "sentence-text", spellcheck: "false", maxlength: 20_000 });
  readonly #size = element("p", { class: "soft", id: "sentence-size" });
  readonly #status = element("p", { class: "soft", role: "status" });
  readonly #problem = element("p", { class: "problem", role: "alert", hidden: true });
  readonly #note = element("p", { class: "note", hidden: true });
  readonly #openAsMap: HTMLButtonElement;
  readonly #untrained = element("input", { type: "checkbox" });
  readonly #trainedFigure: HTMLElement;
  readonly #twinFigure: HTMLElement;
  readonly #twinSlot = element("div", { class: "map-slot" });
  readonly #twinStatus = element("p", { class: "soft map-words" });
  readonly #latest = new Latest();
  readonly #latestTwin = new Latest();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #twin: Twin | undefined;
  #twinTrace: string | null = null;
  /** The text of the trace now shown, once this page has run it. */
  #ranText: string | null = null;
  #shownTwin = "";

  constructor(
    private readonly session: Session,
    private readonly transport: Transport,
    private readonly actions: SentenceActions,
    around: Surroundings,
  ) {
    this.#openAsMap = button("Open as map", () => actions.openAsMap(), { title: "The whole page for this matrix (m)" });
    const untrainedSwitch = element(
      "label",
      { class: "switch", hidden: !session.untrained },
      this.#untrained,
      " untrained twin beside it",
    );
    this.#size.textContent = `At most ${plural(session.limit, "token")}.`;
    this.form = element(
      "section",
      { class: "sentence", "aria-label": "Type a sentence" },
      element("label", { for: "sentence-text", class: "label" }, `What should ${session.model ? title(session.model) : "the model"} read?`),
      this.#box,
      element(
        "div",
        { class: "sentence-line" },
        button("Run", () => this.#runNow(), { class: "primary", title: "Enter" }),
        this.#size,
        this.#status,
        element("div", { class: "spring" }),
        untrainedSwitch,
        this.#openAsMap,
      ),
      this.#problem,
      this.#presets(),
      this.#note,
    );
    this.#box.setAttribute("aria-describedby", "sentence-size");
    this.#trainedFigure = figure("trained", this.slot);
    this.#twinFigure = figure("untrained, random weights", this.#twinSlot, this.#twinStatus);
    this.#twinFigure.hidden = true;
    this.stage = element("div", { class: "stage" }, this.#trainedFigure, this.#twinFigure);
    const growing = {
      start: () => ({ text: this.#box.value, layer: actions.state().layer, head: actions.state().head }),
      scale: (keys: number) => ranged(actions.state(), keys),
      finished: (text: string, trace: string) => this.#finished(text, trace),
      say: (text: string) => actions.say(text),
    };
    const generation = new Generation(transport, growing, around);
    this.below = session.generates ? generation.element : element("div", { hidden: true });
    this.#listen();
    around.signal.addEventListener("abort", () => this.#stop());
  }

  focus(): void {
    this.#box.focus();
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#latest.stop();
    this.#latestTwin.stop();
    this.#twin?.map.destroy();
  }

  /** The untrained map follows the same state as the trained one. */
  update(state: State): void {
    const beside = state.view === "sentence" && this.#untrained.checked;
    this.#trainedFigure.classList.toggle("alone", !beside);
    this.#twinFigure.hidden = !beside;
    if (beside && this.#twinTrace !== null)
      this.#showTwin(this.#twinTrace).catch((error: unknown) => this.#twinFailed(error));
  }

  /** How long the shown text is; null when none is shown, and the examples then say what there is to see. */
  measured(tokens: number | null): void {
    this.#openAsMap.disabled = tokens === null;
    this.form.classList.toggle("inviting", tokens === null);
    this.#size.textContent =
      tokens === null
        ? `At most ${plural(this.session.limit, "token")}.`
        : `${counted(tokens)} of at most ${plural(this.session.limit, "token")}.`;
  }

  /** A trace that came by link or from the command line: its text, if the box holds none yet. */
  offer(text: string): void {
    if (this.#box.value !== "" || this.#box.matches(":focus")) return;
    this.#box.value = text;
    this.#ranText = text;
  }

  #listen(): void {
    this.#box.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#note.hidden = true;
      this.#timer = setTimeout(() => this.#runNow(), PAUSE);
    });
    this.#box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#box.blur();
      // Shift and Enter begins a new line: texts have those too.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#runNow();
    });
    this.#untrained.addEventListener("change", () => {
      this.update(this.actions.state());
      if (this.#untrained.checked) void this.#runTwin();
    });
  }

  #presets(): HTMLElement {
    const choose = (text: string, note: string): void => {
      this.#box.value = text;
      this.#note.textContent = note;
      this.#note.hidden = note === "";
      this.#runNow();
    };
    return element(
      "div",
      { class: "presets", role: "group", "aria-label": "Examples", hidden: this.session.presets.length === 0 },
      element("p", { class: "or-choose" }, "Or choose an example:"),
      ...this.session.presets.map(({ text, note }) =>
        element(
          "div",
          { class: "preset" },
          button(element("bdi", {}, title(text, 120)), () => choose(text, note), { title: note }),
          element("p", { class: "soft" }, note),
        ),
      ),
    );
  }

  #runNow(): void {
    clearTimeout(this.#timer);
    const text = this.#box.value;
    if (text.trim() === "") {
      this.#latest.stop();
      this.#status.textContent = "";
      return;
    }
    if (text !== this.#ranText) void this.#run(text);
  }

  async #run(text: string): Promise<void> {
    const signal = this.#latest.begin();
    this.#latestTwin.stop();
    this.#status.textContent = "running…";
    this.#problem.hidden = true;
    const { layer, head } = this.actions.state();
    try {
      const summary = await this.transport.post<Summary>(paths.run(), { text, twin: false, layer, head }, signal);
      if (signal.aborted) return;
      this.#ranText = text;
      this.#twinTrace = null;
      this.#status.textContent = "";
      this.actions.ran(summary.trace);
      if (this.#untrained.checked) void this.#runTwin();
    } catch (error) {
      if (aborted(error) || signal.aborted) return;
      this.#status.textContent = "";
      this.#problem.textContent = told(error);
      this.#problem.hidden = false;
    }
  }

  async #runTwin(): Promise<void> {
    const text = this.#ranText ?? this.#box.value;
    if (text.trim() === "") return;
    const signal = this.#latestTwin.begin();
    this.#twinStatus.textContent = "running the untrained twin…";
    this.#twinStatus.hidden = false;
    try {
      const summary = await this.transport.post<Summary>(paths.run(), { text, twin: true }, signal);
      if (signal.aborted) return;
      this.#twinTrace = summary.trace;
      this.update(this.actions.state());
    } catch (error) {
      this.#twinFailed(error);
    }
  }

  #twinFailed(error: unknown): void {
    if (aborted(error)) return;
    this.#twinStatus.textContent = told(error);
    this.#twinStatus.hidden = false;
  }

  async #showTwin(trace: string): Promise<void> {
    const own = await this.actions.meta(trace);
    const { whatIf } = this.actions.state();
    const meta = whatIf && own.what_if !== null ? await this.actions.meta(own.what_if) : own;
    if (trace !== this.#twinTrace || whatIf !== this.actions.state().whatIf) return;
    if (!this.#twin) {
      this.#twin = this.actions.createTwin();
      replaceChildren(this.#twinSlot, this.#twin.map.element);
    }
    // Whatever it is by now: the reader may have gone on to another head meanwhile.
    const state = this.actions.state();
    const name = `${meta.trace}/${state.layer}/${state.head}`;
    this.#twin.map.update(state);
    if (name !== this.#shownTwin) {
      this.#shownTwin = name;
      this.#twin.setMeta(meta);
      this.#twin.map.setHead(meta, state.layer, state.head);
      this.#twin.map.resize();
    }
    this.#twinStatus.hidden = true;
  }

  #finished(text: string, trace: string): void {
    this.#box.value = text;
    this.#ranText = text;
    this.#twinTrace = null;
    this.actions.ran(trace);
    if (this.#untrained.checked) void this.#runTwin();
  }
}

function figure(caption: string, ...content: HTMLElement[]): HTMLElement {
  return element("figure", { class: "map-figure" }, element("figcaption", {}, caption), ...content);
}
