/**
 * Generates tokens from a text, and draws the attention of each new token.
 */

import { prepareSurface } from "../paint/canvas";
import { Chart } from "./chart";
import { getEntry, getTable, toCss, type ColourScale } from "../paint/colour";
import { button, element, field, replaceChildren, token } from "./dom";
import type { HostContext } from "../host";
import { describeError, LatestRequest } from "../server/requests";
import { pluralize } from "../format_numbers";
import { paths, type GenerateEvent, type GenerateRequest } from "../server/protocol";
import { isAbortError, type Transport } from "../server/transport";

const MAX_TOKENS = 64;

export interface GenerationActions {
  /** The prompt, and the head whose attention is drawn. */
  getStart(): { readonly text: string; readonly layer: number; readonly head: number };
  /** The colours of a text of this many tokens. */
  getScale(keys: number): ColourScale;
  onFinish(text: string, trace: string): void;
  announce(text: string): void;
}

export class GenerationPanel {
  readonly element: HTMLElement;
  readonly #count = createNumberInput(16, 1, MAX_TOKENS, 1);
  readonly #temperature = createNumberInput(0, 0, 5, 0.1);
  readonly #seed = createNumberInput(0, 0, 999_999, 1);
  readonly #startButton: HTMLButtonElement;
  readonly #stopButton: HTMLButtonElement;
  readonly #status = element("p", { class: "soft", "aria-live": "polite" });
  readonly #strip = element("p", { class: "strip", "aria-label": "The text so far" });
  readonly #chart: Chart;
  readonly #rowsCanvas = element("canvas", {
    class: "growing",
    role: "img",
    "aria-label": "Rows of attention of the new tokens",
  });
  /** Visible while generating; afterwards the map shows the same rows. */
  readonly #growing: HTMLElement;
  readonly #result: HTMLElement;
  readonly #request = new LatestRequest();
  #tokens: HTMLElement[] = [];
  #rows: number[][] = [];
  #prompt = 0;

  constructor(
    private readonly transport: Transport,
    private readonly actions: GenerationActions,
    context: HostContext,
  ) {
    this.#chart = new Chart(48, context);
    context.signal.addEventListener("abort", () => this.#request.cancel());
    this.#startButton = button("Generate", () => void this.#run(), { class: "primary" });
    this.#stopButton = button("Stop", () => this.stop(), { hidden: true });
    this.#growing = element(
      "div",
      {},
      element("p", { class: "caption soft" }, "What the newest token attends to:"),
      this.#chart.element,
      element("p", { class: "caption soft" }, "The rows of all new tokens:"),
      this.#rowsCanvas,
    );
    this.#result = element("div", { class: "generated", hidden: true }, this.#strip, this.#growing);
    this.element = element(
      "details",
      { class: "generation" },
      element("summary", {}, "Generate from here"),
      element(
        "div",
        { class: "generation-fields" },
        field("tokens", this.#count),
        field("temperature", this.#temperature, { title: "0 always takes the most likely token" }),
        field("seed", this.#seed, { title: "The same seed gives the same text" }),
        this.#startButton,
        this.#stopButton,
        this.#status,
      ),
      this.#result,
    );
  }

  stop(): void {
    this.#request.cancel();
    this.#setRunning(false);
  }

  async #run(): Promise<void> {
    const start = this.actions.getStart();
    if (start.text.trim() === "") {
      this.#status.textContent = "Type a prompt first.";
      return;
    }
    const signal = this.#request.start();
    const request: GenerateRequest = {
      ...start,
      count: clampInput(this.#count, 1, MAX_TOKENS),
      temperature: clampInput(this.#temperature, 0, 5),
      seed: clampInput(this.#seed, 0, 999_999),
    };
    this.#setRunning(true);
    this.#status.textContent = "thinking…";
    try {
      for await (const event of this.transport.stream<GenerateEvent>(paths.generate(), request, signal)) {
        if (signal.aborted) return;
        this.#handleEvent(event, request.count);
      }
    } catch (error) {
      if (!isAbortError(error)) this.#status.textContent = describeError(error);
    } finally {
      if (!signal.aborted) this.#setRunning(false);
      else this.#status.textContent = `stopped after ${pluralize(this.#rows.length, "token")}`;
    }
  }

  #handleEvent(event: GenerateEvent, wanted: number): void {
    if ("error" in event) {
      this.#status.textContent = event.error;
    } else if ("prompt" in event) {
      this.#prompt = event.prompt.length;
      this.#rows = [];
      this.#tokens = event.prompt.map((text, position) => token(text, position));
      replaceChildren(this.#strip, ...this.#tokens);
      this.#result.hidden = false;
      this.#growing.hidden = false;
      this.#result.scrollIntoView({ block: "nearest" });
    } else if ("done" in event) {
      this.#status.textContent = pluralize(this.#rows.length, "new token");
      this.#growing.hidden = true;
      this.actions.announce(`Generated ${pluralize(this.#rows.length, "token")}`);
      this.actions.onFinish(event.text, event.trace);
    } else {
      const made = token(event.token, event.position);
      made.classList.add("new");
      this.#tokens.push(made);
      this.#strip.append(made);
      this.#rows.push(event.row);
      this.#status.textContent = `${this.#rows.length} of ${wanted}`;
      this.#drawNewest(event.row, wanted);
      this.#drawRows(wanted);
    }
  }

  #drawNewest(row: readonly number[], wanted: number): void {
    const columns = this.#prompt + wanted;
    // As wide as the rows below, column for column.
    this.#chart.element.style.width = `${this.#getCellSize(columns) * columns}px`;
    this.#chart.show({
      values: Array.from({ length: columns }, (_, key) => row[key] ?? NaN),
      colour: "query",
      label: `What the newest token attends to, ${pluralize(row.length, "key")}`,
    });
    // The attention of the newest token, shown on the text.
    this.#tokens.forEach((shown, position) =>
      shown.style.setProperty("--gaze", String(Math.min(1, row[position] ?? 0))),
    );
  }

  /** CSS pixels of a cell. */
  #getCellSize(columns: number): number {
    return Math.min(12, this.#rowsCanvas.clientWidth / columns);
  }

  #drawRows(wanted: number): void {
    const columns = this.#prompt + wanted;
    const width = this.#rowsCanvas.clientWidth;
    const side = this.#getCellSize(columns);
    this.#rowsCanvas.style.height = `${Math.ceil(side * wanted)}px`;
    const surface = prepareSurface(this.#rowsCanvas, width, Math.ceil(side * wanted));
    if (!surface) return;
    const scale = this.actions.getScale(columns);
    const table = getTable(scale.colours);
    this.#rows.forEach((row, down) =>
      row.forEach((weight, across) => {
        surface.context.fillStyle = toCss(table, getEntry(weight, scale));
        surface.context.fillRect(across * side, down * side, Math.ceil(side), Math.ceil(side));
      }),
    );
  }

  #setRunning(running: boolean): void {
    this.#startButton.hidden = running;
    this.#stopButton.hidden = !running;
  }
}

function createNumberInput(value: number, min: number, max: number, step: number): HTMLInputElement {
  return element("input", { type: "number", value, min, max, step });
}

function clampInput(input: HTMLInputElement, low: number, high: number): number {
  const typed = input.step === "1" ? Math.round(input.valueAsNumber) : input.valueAsNumber;
  const value = Number.isFinite(typed) ? Math.min(high, Math.max(low, typed)) : low;
  input.value = String(value);
  return value;
}
