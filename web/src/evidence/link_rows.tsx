/** Links as a list: a row goes to the other token, shows it in its context, and has a bar as long as its weight. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatCount, formatWeightColumn } from "../format_numbers";
import type { Passage } from "./passage";

/** Smaller weights are not listed. */
export const LEAST_LISTED = 1e-6;

export interface LinkRow {
  readonly position: number;
  readonly weight: number;
}

export interface LinkRowsOptions {
  readonly rows: readonly LinkRow[];
  /** How many are shown at first. */
  readonly visible: number;
  readonly marked?: number | null;
  getPassage(position: number): Passage | null;
  onChoose(position: number): void;
}

export function LinkRows({ rows, visible, marked = null, getPassage, onChoose }: LinkRowsOptions): JSX.Element {
  const [shown, setShown] = useState(visible);
  const most = rows[0]?.weight ?? 1;
  const rest = rows.length - shown;
  return (
    <>
      <ol class="strongest">
        {rows.slice(0, shown).map(({ position, weight }) => (
          <li key={position}>
            <button type="button" aria-current={position === marked ? "true" : undefined} onClick={() => onChoose(position)}>
              <Kwic passage={getPassage(position)} position={position} />
              <span class="position soft">{formatCount(position)}</span>
              <span class="weight">{formatWeightColumn(weight)}</span>
              <span class="weight-bar" aria-hidden="true" style={{ width: `${Math.max(1, (weight / most) * 100)}%` }} />
            </button>
          </li>
        ))}
      </ol>
      {rest > 0 && (
        <button type="button" class="more" onClick={() => setShown(shown + 40)}>
          {formatCount(Math.min(rest, 40))} more
        </button>
      )}
    </>
  );
}

/** Tokens in their context; a position stands for a text that is not known. */
export function Kwic({ passage, position }: { readonly passage: Passage | null; readonly position: number }): JSX.Element {
  if (!passage) return <bdi class="token token-unknown">#{position}</bdi>;
  return (
    <span class="kwic">
      <span class="kwic-before soft">
        <bdi>{passage.before}</bdi>
      </span>
      <bdi class="kwic-token">{passage.marked}</bdi>
      <bdi class="soft">{passage.after}</bdi>
    </span>
  );
}
