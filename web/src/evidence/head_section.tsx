/** The labels and scores of the head, and its attention by distance. */

import type { JSX } from "preact";
import { formatCount, formatMeasure, formatPercent } from "../format_numbers";
import type { Host } from "../host";
import { formatTitle } from "../paint/token_text";
import type { ChartData } from "../panels/chart";
import { formatHeadName, type DistanceProfile, type Finding, type Scores, type TraceHead } from "../server/protocol";
import { BarChart } from "./bar_chart";
import type { Response } from "./use_response";

export interface HeadSectionOptions {
  readonly shown: TraceHead;
  readonly scores: Response<Scores>;
  /** What the head was chosen for as one to begin with; it may be no label, as it is about one link. */
  readonly found: Finding | null;
  /** Of cross-attention there is none. */
  readonly profile: Response<DistanceProfile>;
  readonly host: Host;
}

export function HeadSection({ shown: { meta, layer, head }, scores, found, profile, host }: HeadSectionOptions): JSX.Element {
  const distances = profile.isStale ? null : profile.value;
  return (
    <section class="head-panel" aria-label="This head">
      <h3>
        {formatHeadName(meta, layer, head)} <bdi class="soft">{formatTitle(meta.layers[layer]?.name ?? "")}</bdi>
      </h3>
      <div class="labels">
        <Labels scores={scores} found={found} />
      </div>
      <h4>Attention by distance</h4>
      <BarChart height={72} host={host} data={distances && createChart(distances)} />
      <p class="caption soft">
        {meta.layers[layer]?.cross
          ? "Cross-attention: queries and keys are from two texts, so there is no distance."
          : distances
            ? describeProfile(distances)
            : (profile.problem ?? "reading…")}
      </p>
    </section>
  );
}

function Labels({ scores: { value, isStale, problem }, found }: Pick<HeadSectionOptions, "scores" | "found">): JSX.Element {
  if (isStale || !value) return <p class="soft">{problem ?? "reading…"}</p>;
  if (value.pending) return <p class="soft">Scoring this head…</p>;
  const numbers = Object.entries(value.scores);
  const labels = listLabels(value.labels, found);
  return (
    <>
      {labels.length === 0 ? (
        <p class="soft">No known pattern stands out.</p>
      ) : (
        <dl class="label-list">
          {labels.map(({ name, meaning }) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
      )}
      {numbers.length > 0 && (
        <details>
          <summary>Scores</summary>
          <table class="scores">
            <tbody>
              {numbers.map(([name, score]) => (
                <tr key={name}>
                  <th scope="row">{name.replaceAll("_", " ")}</th>
                  <td>{formatMeasure(score)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </details>
      )}
    </>
  );
}

/** The labels, and first what the head was chosen for if that is none of them; "mixed" stands for no label. */
export function listLabels(labels: Scores["labels"], found: Finding | null): Scores["labels"] {
  if (!found || labels.some(({ name }) => name === found.label)) return labels;
  return [{ name: found.label, meaning: found.meaning }, ...labels.filter(({ name }) => name !== "mixed")];
}

function createChart({ mass, edges }: DistanceProfile): ChartData {
  const names = mass.map((_, bin) => formatDistance(edges[bin] ?? 0));
  const largest = mass.reduce((best, share, bin) => (share > (mass[best] ?? 0) ? bin : best), 0);
  return {
    values: mass,
    names,
    colour: "accent",
    label: `Share of attention by distance, largest ${formatPercent(mass[largest] ?? 0)} from ${names[largest] ?? "0"} positions back`,
  };
}

function describeProfile({ sampled_rows: sampled, rows, ahead }: DistanceProfile): string {
  const later = (ahead ?? []).reduce((sum, share) => sum + share, 0);
  return [
    "Mean share of a query's attention by positions back;",
    sampled < rows ? `from ${formatCount(sampled)} of ${formatCount(rows)} queries.` : `from all ${formatCount(rows)} queries.`,
    later > 0.0005 ? `To later positions: ${formatPercent(later)}.` : "",
  ].join(" ");
}

function formatDistance(edge: number): string {
  return edge >= 1024 ? `${edge / 1024}k` : String(edge);
}
