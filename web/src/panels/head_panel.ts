/** The labels and scores of a head, and its attention by distance. */

import { Chart } from "./chart";
import { element, replaceChildren } from "./dom";
import type { HostContext } from "../host";
import { formatCount, formatMeasure, formatPercent } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import type { DistanceProfile, Scores } from "../server/protocol";

export class HeadPanel {
  readonly element: HTMLElement;
  readonly #heading = element("h3");
  readonly #labels = element("div", { class: "labels" });
  readonly #caption = element("p", { class: "caption soft" });
  readonly #chart: Chart;

  constructor(context: HostContext) {
    this.#chart = new Chart(72, context);
    this.element = element(
      "section",
      { class: "head-panel", "aria-label": "This head" },
      this.#heading,
      this.#labels,
      element("h4", {}, "Attention by distance"),
      this.#chart.element,
      this.#caption,
    );
  }

  setHead(layer: number, head: number, layerName: string): void {
    replaceChildren(this.#heading, `Layer ${layer}, head ${head} `, element("bdi", { class: "soft" }, formatTitle(layerName)));
    replaceChildren(this.#labels, element("p", { class: "soft" }, "reading…"));
    this.#caption.textContent = "reading…";
    this.#chart.clear();
  }

  showScores({ labels, scores, pending }: Scores): void {
    if (pending) {
      replaceChildren(this.#labels, element("p", { class: "soft" }, "Scoring this head…"));
      return;
    }
    const found = labels.map(({ name, meaning }) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, meaning)),
    );
    const numbers = Object.entries(scores).map(([name, value]) =>
      element("tr", {}, element("th", { scope: "row" }, name.replaceAll("_", " ")), element("td", {}, formatMeasure(value))),
    );
    replaceChildren(
      this.#labels,
      labels.length === 0
        ? element("p", { class: "soft" }, "No known pattern stands out.")
        : element("dl", { class: "label-list" }, ...found),
      numbers.length > 0 &&
        element(
          "details",
          {},
          element("summary", {}, "Scores"),
          element("table", { class: "scores" }, element("tbody", {}, ...numbers)),
        ),
    );
  }

  showScoresError(message: string): void {
    replaceChildren(this.#labels, element("p", { class: "soft" }, message));
  }

  showProfile(profile: DistanceProfile): void {
    const names = profile.mass.map((_, bin) => formatDistance(profile.edges[bin] ?? 0));
    const largest = profile.mass.reduce((best, share, bin) => (share > (profile.mass[best] ?? 0) ? bin : best), 0);
    this.#chart.show({
      values: profile.mass,
      names,
      colour: "accent",
      label: `Share of attention by distance, largest ${formatPercent(profile.mass[largest] ?? 0)} from ${names[largest] ?? "0"} tokens back`,
    });
    const ahead = (profile.ahead ?? []).reduce((sum, share) => sum + share, 0);
    this.#caption.textContent = [
      "Mean share of a query's attention by tokens back;",
      profile.sampled_rows < profile.rows
        ? `from ${formatCount(profile.sampled_rows)} of ${formatCount(profile.rows)} queries.`
        : `from all ${formatCount(profile.rows)} queries.`,
      ahead > 0.0005 ? `To later tokens: ${formatPercent(ahead)}.` : "",
    ].join(" ");
  }

  showProfileError(message: string): void {
    this.#caption.textContent = message;
  }
}

function formatDistance(edge: number): string {
  return edge >= 1024 ? `${edge / 1024}k` : String(edge);
}
