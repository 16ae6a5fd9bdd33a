/** The strongest keys of a query by weight times the norm of their value: how much they can add to the head's output. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { LinkRows } from "./link_rows";
import type { Passage } from "./passage";
import type { WeightReport } from "../server/protocol";
import { useResponse } from "./use_response";

export interface ValueWeightedOptions {
  /** Of the strongest keys. */
  readonly paths: readonly string[];
  load(path: string, signal: AbortSignal): Promise<WeightReport>;
  getPassage(position: number): Passage | null;
  onChoose(position: number): void;
}

/** Loads when it is opened. */
export function ValueWeighted({ paths, load, getPassage, onChoose }: ValueWeightedOptions): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const { value, isStale, problem } = useResponse(isOpen ? paths.join() : null, (signal) => Promise.all(paths.map((path) => load(path, signal))));
  const rows = value?.flatMap(({ key, weight, value_norm: norm }) => (norm === null ? [] : [{ position: key, weight: weight * norm }]));
  return (
    <details open={isOpen} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>Weight × |v|</summary>
      {isOpen && (
        <>
          <p class="soft">
            {isStale || !rows
              ? (problem ?? "reading…")
              : rows.length === 0
                ? "The values of this trace were not recorded."
                : `The ${rows.length} strongest keys, by weight times the norm of their value.`}
          </p>
          {!isStale && rows && (
            <LinkRows rows={rows.sort((one, other) => other.weight - one.weight)} visible={rows.length} getPassage={getPassage} onChoose={onChoose} />
          )}
        </>
      )}
    </details>
  );
}
