/** The next-token distribution of a trained model at a position, with temperature, top-k and top-p. */

import { useState } from "preact/hooks";
import type { JSX } from "preact";
import { formatPercent } from "../format_numbers";
import { formatToken } from "../paint/token_text";
import { EXAMPLE_DATA } from "./example_data";
import { computeNextTokens } from "./next_token";
import type { Settings } from "./stages";

const NUM_BARS = 12;
const PLAIN = EXAMPLE_DATA.temperatures.indexOf(1);

export function NextTokenBars({ query, settings }: { readonly query: number; readonly settings: Settings }): JSX.Element | null {
  const [setting, setSetting] = useState(PLAIN);
  const [topK, setTopK] = useState(0);
  const [topP, setTopP] = useState(1);
  const stored = EXAMPLE_DATA.nextTokens[query];
  const temperature = EXAMPLE_DATA.temperatures[setting] ?? 1;
  if (settings.shuffleSeed > 0) return <p>The tokens are shuffled. The stored logits are those of the original order.</p>;
  if (!stored) return null;
  const { probabilities, rest, isTopPExact } = computeNextTokens(stored.logits, stored.rest[setting] ?? -Infinity, temperature, topK, topP);
  const bars = [
    ...probabilities.slice(0, NUM_BARS).map((share, rank) => ({ text: formatToken(stored.tokens[rank] ?? ""), share, isToken: true })),
    { text: "all others", share: probabilities.slice(NUM_BARS).reduce((sum, share) => sum + share, rest), isToken: false },
  ];
  return (
    <>
      <p>
        What the whole model predicts after <bdi class="token">{formatToken(EXAMPLE_DATA.tokens[query] ?? "")}</bdi>, from stored logits. Editing this head does not change them: that takes a run of the model.
      </p>
      <div class="controls">
        <label class="field">
          <span>sampling temperature</span>
          <input type="range" min="0" max={EXAMPLE_DATA.temperatures.length - 1} value={setting} aria-valuetext={String(temperature)} onInput={({ currentTarget }) => setSetting(Number(currentTarget.value))} />
          <output>{temperature.toFixed(2)}</output>
        </label>
        <label class="field">
          <span>top-k</span>
          <input type="range" min="0" max={stored.logits.length} value={topK} aria-valuetext={topK === 0 ? "off" : String(topK)} onInput={({ currentTarget }) => setTopK(Number(currentTarget.value))} />
          <output>{topK === 0 ? "off" : topK}</output>
        </label>
        <label class="field">
          <span>top-p</span>
          <input type="range" min="0.05" max="1" step="0.05" value={topP} onInput={({ currentTarget }) => setTopP(Number(currentTarget.value))} />
          <output>{topP >= 1 ? "off" : topP.toFixed(2)}</output>
        </label>
      </div>
      {!isTopPExact && <p role="status">The {stored.logits.length} stored tokens do not reach this probability, so top-p is left out.</p>}
      <ol class="next-tokens">
        {bars.map(({ text, share, isToken }, rank) => (
          <li key={rank}>
            <bdi class={isToken ? "token" : "soft"}>{text}</bdi>
            <span class="next-bar">
              <span style={{ width: `${(100 * share).toFixed(2)}%` }} />
            </span>
            <span class="next-share">{share === 0 ? "removed" : formatPercent(share)}</span>
          </li>
        ))}
      </ol>
    </>
  );
}
