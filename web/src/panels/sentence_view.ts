/**
 * Type a sentence: a text box, examples, and the attention of the model, next to that of its randomly initialised copy.
 *
 * In: text. Out: traces that the server recorded. The map is the same as in the map view, placed in `slot`.
 */

import { button, element, replaceChildren } from "./dom";
import { GenerationPanel } from "./generation_panel";
import type { HostContext } from "../host";
import { describeError, LatestRequest } from "../server/requests";
import type { MapView } from "../map/map_view";
import { formatCount, pluralize } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import { paths, type Meta, type Preset, type Session, type Summary } from "../server/protocol";
import { chooseScale } from "../paint/colour";
import type { State } from "../state";
import { isAbortError, type Transport } from "../server/transport";

const PAUSE_MILLISECONDS = 400;

export interface BaselineMap {
  readonly map: MapView;
  /** Sets the trace whose tokens label the axes. */
  setMeta(meta: Meta): void;
}

export interface SentenceActions {
  getState(): State;
  /** Show the trace of a run. */
  showRun(trace: string): void;
  chooseHead(layer: number, head: number): void;
  openAsMap(): void;
  loadMeta(trace: string): Promise<Meta>;
  /** A second map that shares pins and moves; created on first use. */
  createBaseline(): BaselineMap;
  announce(text: string): void;
}

export class SentenceView {
  readonly form: HTMLElement;
  /** Where the map of the typed text goes. */
  readonly slot = element("div", { class: "map-slot" });
  readonly maps: HTMLElement;
  readonly below: HTMLElement;
  readonly #box = element("textarea", { rows: 2, id: "sentence-text", spellcheck: "false", maxlength: 20_000 });
  readonly #size = element("p", { class: "soft", id: "sentence-size" });
  readonly #status = element("p", { class: "soft", role: "status" });
  readonly #problem = element("p", { class: "problem", role: "alert", hidden: true });
  readonly #note = element("p", { class: "note", hidden: true });
  readonly #openAsMap: HTMLButtonElement;
  readonly #baselineSwitch = element("input", { type: "checkbox" });
  readonly #trainedFigure: HTMLElement;
  readonly #baselineFigure: HTMLElement;
  readonly #baselineSlot = element("div", { class: "map-slot" });
  readonly #baselineStatus = element("p", { class: "soft map-words" });
  readonly #request = new LatestRequest();
  readonly #baselineRequest = new LatestRequest();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #baseline: BaselineMap | undefined;
  #baselineTrace: string | null = null;
  /** The text of the shown trace, if this page has run it. */
  #lastRunText: string | null = null;
  #shownBaseline = "";

  constructor(
    private readonly session: Session,
    private readonly transport: Transport,
    private readonly actions: SentenceActions,
    context: HostContext,
  ) {
    this.#openAsMap = button("Open as map", () => actions.openAsMap(), { title: "The whole page for this matrix (m)" });
    const switchLabel = element(
      "label",
      { class: "switch", hidden: !session.has_baseline },
      this.#baselineSwitch,
      " random-weight baseline",
    );
    this.#size.textContent = `At most ${pluralize(session.max_tokens, "token")}.`;
    this.form = element(
      "section",
      { class: "sentence", "aria-label": "Type a sentence" },
      element("label", { for: "sentence-text", class: "label" }, session.model_note ?? `What should ${session.model ? formatTitle(session.model) : "the model"} read?`),
      this.#box,
      element(
        "div",
        { class: "sentence-line" },
        button("Run", () => this.#runNow(), { class: "primary", title: "Enter" }),
        this.#size,
        this.#status,
        element("div", { class: "spring" }),
        switchLabel,
        this.#openAsMap,
      ),
      this.#problem,
      this.#createPresets(),
      this.#note,
    );
    this.#box.setAttribute("aria-describedby", "sentence-size");
    this.#trainedFigure = createFigure("trained", this.slot);
    this.#baselineFigure = createFigure("random-weight baseline", this.#baselineSlot, this.#baselineStatus);
    this.#baselineFigure.hidden = true;
    this.maps = element("div", { class: "sentence-maps" }, this.#trainedFigure, this.#baselineFigure);
    const generationActions = {
      getStart: () => ({ text: this.#box.value, layer: actions.getState().layer, head: actions.getState().head }),
      getScale: (keys: number) => chooseScale(actions.getState(), 1, keys),
      onFinish: (text: string, trace: string) => this.#finishGeneration(text, trace),
      announce: (text: string) => actions.announce(text),
    };
    const generation = new GenerationPanel(transport, generationActions, context);
    this.below = session.can_generate ? generation.element : element("div", { hidden: true });
    this.#attachListeners();
    context.signal.addEventListener("abort", () => this.#close());
  }

  focus(): void {
    this.#box.focus();
  }

  #close(): void {
    clearTimeout(this.#timer);
    this.#request.cancel();
    this.#baselineRequest.cancel();
    this.#baseline?.map.destroy();
  }

  /** The baseline map follows the same state as the trained one. */
  update(state: State): void {
    const isShown = state.view === "sentence" && this.#baselineSwitch.checked;
    this.#trainedFigure.classList.toggle("alone", !isShown);
    this.#baselineFigure.hidden = !isShown;
    if (isShown && this.#baselineTrace !== null)
      this.#showBaseline(this.#baselineTrace).catch((error: unknown) => this.#showBaselineError(error));
  }

  /** The length of the shown text; null when none is shown, and the examples are shown in full. */
  setTokenCount(tokens: number | null): void {
    this.#openAsMap.disabled = tokens === null;
    this.form.classList.toggle("inviting", tokens === null);
    this.#size.textContent =
      tokens === null
        ? `At most ${pluralize(this.session.max_tokens, "token")}.`
        : `${formatCount(tokens)} of at most ${pluralize(this.session.max_tokens, "token")}.`;
  }

  /** Fill in the text of a trace that was opened by a link, if the box is empty. */
  offerText(text: string): void {
    if (this.#box.value !== "" || this.#box.matches(":focus")) return;
    this.#box.value = text;
    this.#lastRunText = text;
  }

  #attachListeners(): void {
    this.#box.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#note.hidden = true;
      this.#timer = setTimeout(() => this.#runNow(), PAUSE_MILLISECONDS);
    });
    this.#box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#box.blur();
      // Shift and Enter begins a new line: texts have those too.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#runNow();
    });
    this.#baselineSwitch.addEventListener("change", () => {
      this.update(this.actions.getState());
      if (this.#baselineSwitch.checked) this.#runBaseline();
    });
  }

  #createPresets(): HTMLElement {
    const choose = ({ text, note, layer, head }: Preset): void => {
      this.#box.value = text;
      // The head first: its row is what the run answers with.
      if (typeof layer === "number" && typeof head === "number") this.actions.chooseHead(layer, head);
      this.#note.textContent = note;
      this.#note.hidden = note === "";
      this.#runNow();
    };
    return element(
      "div",
      { class: "presets", role: "group", "aria-label": "Examples", hidden: this.session.presets.length === 0 },
      element("p", { class: "or-choose" }, "Or choose an example:"),
      ...this.session.presets.map((preset) => {
        const text = formatTitle(preset.text, 120);
        return element(
          "div",
          { class: "preset" },
          button(element("bdi", {}, text), () => choose(preset), { title: `${text}\n${preset.note}` }),
          element("p", { class: "soft" }, preset.note),
        );
      }),
    );
  }

  #runNow(): void {
    clearTimeout(this.#timer);
    const text = this.#box.value;
    if (text.trim() === "") {
      this.#request.cancel();
      this.#status.textContent = "";
      return;
    }
    if (text !== this.#lastRunText) this.#run(text);
  }

  #run(text: string): void {
    this.#baselineRequest.cancel();
    this.#status.textContent = "running…";
    this.#problem.hidden = true;
    const { layer, head } = this.actions.getState();
    void this.#request.run(
      (signal) => this.transport.post<Summary>(paths.run(), { text, baseline: false, layer, head }, signal),
      ({ trace }) => {
        this.#status.textContent = "";
        this.#showRun(text, trace);
      },
      (message) => {
        this.#status.textContent = "";
        this.#problem.textContent = message;
        this.#problem.hidden = false;
      },
    );
  }

  #showRun(text: string, trace: string): void {
    this.#lastRunText = text;
    this.#baselineTrace = null;
    this.actions.showRun(trace);
    if (this.#baselineSwitch.checked) this.#runBaseline();
  }

  #runBaseline(): void {
    const text = this.#lastRunText ?? this.#box.value;
    if (text.trim() === "") return;
    this.#baselineStatus.textContent = "running the random-weight baseline…";
    this.#baselineStatus.hidden = false;
    void this.#baselineRequest.run(
      (signal) => this.transport.post<Summary>(paths.run(), { text, baseline: true }, signal),
      ({ trace }) => {
        this.#baselineTrace = trace;
        this.update(this.actions.getState());
      },
      (_, error) => this.#showBaselineError(error),
    );
  }

  #showBaselineError(error: unknown): void {
    if (isAbortError(error)) return;
    this.#baselineStatus.textContent = describeError(error);
    this.#baselineStatus.hidden = false;
  }

  async #showBaseline(trace: string): Promise<void> {
    const ownMeta = await this.actions.loadMeta(trace);
    const { unmasked } = this.actions.getState();
    const meta = unmasked && ownMeta.unmasked !== null ? await this.actions.loadMeta(ownMeta.unmasked) : ownMeta;
    if (trace !== this.#baselineTrace || unmasked !== this.actions.getState().unmasked) return;
    if (!this.#baseline) {
      this.#baseline = this.actions.createBaseline();
      replaceChildren(this.#baselineSlot, this.#baseline.map.element);
    }
    // Use the newest state: the reader may have chosen another head meanwhile.
    const state = this.actions.getState();
    const name = `${meta.trace}/${state.layer}/${state.head}`;
    this.#baseline.map.update(state);
    if (name !== this.#shownBaseline) {
      this.#shownBaseline = name;
      this.#baseline.setMeta(meta);
      this.#baseline.map.setHead(meta, state.layer, state.head);
      this.#baseline.map.resize();
    }
    this.#baselineStatus.hidden = true;
  }

  #finishGeneration(text: string, trace: string): void {
    this.#box.value = text;
    this.#showRun(text, trace);
  }
}

function createFigure(caption: string, ...content: HTMLElement[]): HTMLElement {
  return element("figure", { class: "map-figure" }, element("figcaption", {}, caption), ...content);
}
