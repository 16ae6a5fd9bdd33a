/**
 * Letting the model go on from a text, one token at a time, while each new row of attention is drawn.
 */

import { Chart, surfaceOf } from "./chart";
import { cssOf, entryOf, tableOf, type Scale } from "../paint/colour";
import { button, element, field, replaceChildren, token } from "./dom";
import type { Surroundings } from "../host";
import { Latest, told } from "../server/requests";
import { plural } from "../format_numbers";
import { paths, type GenerateEvent, type GenerateRequest } from "../server/protocol";
import { aborted, type Transport } from "../server/transport";

const MOST_TOKENS = 64;

export interface GenerationActions {
  /** The text to go on from, and the head to watch. */
  start(): { readonly text: string; readonly layer: number; readonly head: number };
  /** The colours of a text of this many tokens. */
  scale(keys: number): Scale;
  finished(text: string, trace: string): void;
  say(text: string): void;
}

export class Generation {
  readonly element: HTMLElement;
  readonly #count = number(16, 1, MOST_TOKENS, 1);
  readonly #temperature = number(0, 0, 5, 0.1);
  readonly #seed = number(0, 0, 999_999, 1);
  readonly #go: HTMLButtonElement;
  readonly #halt: HTMLButtonElement;
  readonly #status = element("p", { class: "soft", "aria-live": "polite" });
  readonly #strip = element("p", { class: "strip", "aria-label": "The text so far" });
  readonly #chart: Chart;
  readonly #picture = element("canvas", {
    class: "growing",
    role: "img",
    "aria-label": "Rows of attention of the new tokens",
  });
  /** Seen while tokens come; afterwards the map of the whole shows the same rows. */
  readonly #growing: HTMLElement;
  readonly #result: HTMLElement;
  readonly #latest = new Latest();
  #tokens: HTMLElement[] = [];
  #rows: number[][] = [];
  #prompt = 0;

  constructor(
    private readonly transport: Transport,
    private readonly actions: GenerationActions,
    around: Surroundings,
  ) {
    this.#chart = new Chart(48, around);
    around.signal.addEventListener("abort", () => this.#latest.stop());
    this.#go = button("Generate", () => void this.#run(), { class: "primary" });
    this.#halt = button("Stop", () => this.stop(), { hidden: true });
    this.#growing = element(
      "div",
      {},
      element("p", { class: "caption soft" }, "What the newest token looks at:"),
      this.#chart.element,
      element("p", { class: "caption soft" }, "The rows of all new tokens:"),
      this.#picture,
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
        field("temperature", this.#temperature, { title: "0 always takes the likeliest token" }),
        field("seed", this.#seed, { title: "The same seed gives the same text" }),
        this.#go,
        this.#halt,
        this.#status,
      ),
      this.#result,
    );
  }

  stop(): void {
    this.#latest.stop();
    this.#running(false);
  }

  async #run(): Promise<void> {
    const start = this.actions.start();
    if (start.text.trim() === "") {
      this.#status.textContent = "Type a text to go on from first.";
      return;
    }
    const signal = this.#latest.begin();
    const request: GenerateRequest = {
      ...start,
      count: held(this.#count, 1, MOST_TOKENS),
      temperature: held(this.#temperature, 0, 5),
      seed: held(this.#seed, 0, 999_999),
    };
    this.#running(true);
    this.#status.textContent = "thinking…";
    try {
      for await (const event of this.transport.stream<GenerateEvent>(paths.generate(), request, signal)) {
        if (signal.aborted) return;
        this.#take(event, request.count);
      }
    } catch (error) {
      if (!aborted(error)) this.#status.textContent = told(error);
    } finally {
      if (!signal.aborted) this.#running(false);
      else this.#status.textContent = `stopped after ${plural(this.#rows.length, "token")}`;
    }
  }

  #take(event: GenerateEvent, wanted: number): void {
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
      this.#status.textContent = plural(this.#rows.length, "new token");
      this.#growing.hidden = true;
      this.actions.say(`Generated ${plural(this.#rows.length, "token")}`);
      this.actions.finished(event.text, event.trace);
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
    // As wide as the rows beneath, column for column; the tokens still to come are nothing yet.
    this.#chart.element.style.width = `${this.#side(columns) * columns}px`;
    this.#chart.show({
      values: Array.from({ length: columns }, (_, key) => row[key] ?? NaN),
      colour: "query",
      label: `What the newest token looks at, ${plural(row.length, "key")}`,
    });
    // The newest token's gaze, on the text itself.
    this.#tokens.forEach((shown, position) =>
      shown.style.setProperty("--gaze", String(Math.min(1, row[position] ?? 0))),
    );
  }

  /** CSS pixels of a cell. */
  #side(columns: number): number {
    return Math.min(12, this.#picture.clientWidth / columns);
  }

  #drawRows(wanted: number): void {
    const columns = this.#prompt + wanted;
    const width = this.#picture.clientWidth;
    const side = this.#side(columns);
    this.#picture.style.height = `${Math.ceil(side * wanted)}px`;
    const surface = surfaceOf(this.#picture, width, Math.ceil(side * wanted));
    if (!surface) return;
    const scale = this.actions.scale(columns);
    const table = tableOf(scale.colours);
    this.#rows.forEach((row, down) =>
      row.forEach((weight, across) => {
        surface.context.fillStyle = cssOf(table, entryOf(weight, scale));
        surface.context.fillRect(across * side, down * side, Math.ceil(side), Math.ceil(side));
      }),
    );
  }

  #running(running: boolean): void {
    this.#go.hidden = running;
    this.#halt.hidden = !running;
  }
}

function number(value: number, min: number, max: number, step: number): HTMLInputElement {
  return element("input", { type: "number", value, min, max, step });
}

function held(input: HTMLInputElement, low: number, high: number): number {
  const typed = input.step === "1" ? Math.round(input.valueAsNumber) : input.valueAsNumber;
  const value = Number.isFinite(typed) ? Math.min(high, Math.max(low, typed)) : low;
  input.value = String(value);
  return value;
}
