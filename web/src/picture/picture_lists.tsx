/** Beside the picture: its colour scale, the attention that is not on the image, special tokens and sinks. */

import type { JSX } from "preact";
import { formatPercent, formatWeight } from "../format_numbers";
import { getTable, toCss } from "../paint/colour";
import { formatTitle } from "../paint/token_text";
import type { State } from "../state";
import { findPatch, getFrame, sumValues } from "./patch_values";
import type { LoadedOptions } from "./picture_options";
import { namePosition } from "./picture_words";

const MAX_NAMED = 8;

export function Legend({ state, largest, isRollout }: { readonly state: State; readonly largest: number; readonly isRollout: boolean }): JSX.Element {
  const table = getTable(state.colours);
  const stops = [0, 51, 102, 153, 204, 255].map((entry) => toCss(table, entry));
  return (
    <p class="picture-legend">
      <span>0</span>
      <span class="picture-ramp" aria-hidden="true" style={{ background: `linear-gradient(to right, ${stops.join()})` }} />
      <span>
        {formatWeight(largest)} {isRollout ? "share (rollout)" : "weight"}
      </span>
    </p>
  );
}

/** What the query gives to everything but the patches. */
export function Elsewhere({ map, values, state, frame, side }: LoadedOptions): JSX.Element | null {
  if (map.elsewhere.length === 0) return null;
  const head = map.heads === 1 ? 0 : state.head;
  const frames = side.grid[0];
  const onImage = Array.from({ length: frames }, (_, one) => sumValues(getFrame(values, map, head, one))).reduce((sum, value) => sum + value);
  const here = sumValues(getFrame(values, map, head, frame));
  const rows: (readonly [string, number])[] = [["image", onImage], ...(frames > 1 ? [[`frame ${frame}`, here] as const] : []), ...map.elsewhere.map(([name, shares]) => [name, shares[head] ?? NaN] as const)];
  return (
    <section aria-label="Where the attention goes">
      <h3>Where the attention goes</h3>
      <dl class="picture-shares">
        {rows.map(([name, share]) => (
          <div key={name}>
            <dt>{formatTitle(name, 40)}</dt>
            <dd>
              <span class="rank-bar" aria-hidden="true">
                <span data-colour="positive" style={{ width: `${100 * Math.min(1, share)}%` }} />
              </span>
              {formatPercent(share)}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** Special tokens have no place on the image, so they are buttons. */
export function Specials({ patches, chosen, pinPosition }: LoadedOptions): JSX.Element | null {
  const side = patches[chosen.kind === "key" || chosen.kind === "received" ? "key" : "query"];
  const tokens = (side?.special ?? []).flatMap(([name, start, stop]) => Array.from({ length: Math.min(MAX_NAMED, stop - start) }, (_, index) => [stop - start === 1 ? name : `${name} ${index}`, start + index] as const));
  if (tokens.length === 0) return null;
  return (
    <section aria-label="Special tokens">
      <h3>Special tokens</h3>
      <p class="picture-tokens">
        {tokens.map(([name, position]) => (
          <button key={position} type="button" aria-pressed={chosen.positions?.[0] === position} onClick={() => pinPosition(position)}>
            {formatTitle(name, 40)}
          </button>
        ))}
      </p>
    </section>
  );
}

export function Sinks(options: LoadedOptions): JSX.Element | null {
  const { sinks, state, side, chosen } = options;
  if (sinks.length === 0) return null;
  return (
    <section aria-label="Sinks">
      <h3>
        Sinks <span class="soft">receive at least 5% of all attention in a head</span>
      </h3>
      <ul class="picture-sinks">
        {sinks.slice(0, MAX_NAMED).map(({ position, share }) => (
          <li key={position}>
            {namePosition(options, "key", position)}{" "}
            <span class="soft">
              up to {formatPercent(share ?? NaN)}
              {state.hideSink && chosen.kind !== "key" && findPatch(side, position) ? ", hidden" : ""}
            </span>
          </li>
        ))}
        {sinks.length > MAX_NAMED && <li class="soft">and {sinks.length - MAX_NAMED} more</li>}
      </ul>
    </section>
  );
}
