/** What the model predicts at the query, and whether that is the pinned key. */

import type { JSX } from "preact";
import { formatCount, formatMeasure, formatOrdinal, formatPercent } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import type { Predictions, TokenPrediction } from "../server/protocol";
import { Token } from "./pin_section";
import type { Response } from "./use_response";

export interface PredictionSectionOptions {
  /** Of the query, and of the token after it where there is one. */
  readonly response: Response<Predictions>;
  /** The position of the query in the text. */
  readonly position: number;
  /** The texts of the query, of the next token, and of the pinned keys. */
  readonly query: string | undefined;
  readonly following: string | undefined;
  readonly keys: readonly string[];
}

export function PredictionSection({ response, position, query, following, keys }: PredictionSectionOptions): JSX.Element | null {
  const { value, isStale, problem } = response;
  const [at, after] = value?.tokens ?? [];
  const reason = problem ?? value?.problem ?? (isStale || value?.pending || !at ? "The model is reading the text…" : null);
  return (
    <section class="predictions" aria-label="Predictions">
      <h3>
        Next token after <Token text={query} position={position} />
      </h3>
      {reason !== null || !at ? (
        <p class="soft">{reason}</p>
      ) : (
        <>
          <ol class="predicted">
            {at.next.map(([text, probability], index) => (
              <li key={index} class={isSameWord(text, keys) ? "is-key" : ""}>
                <Token text={text} position={position + 1} />
                <span class="weight">{formatPercent(probability)}</span>
                <span class="weight-bar" aria-hidden="true" style={{ width: `${Math.max(1, probability * 100)}%` }} />
              </li>
            ))}
          </ol>
          {keys.length > 0 && <p class="says-it">{describeAnswer(at, keys)}</p>}
          <p class="soft">{describeSurprise(at, after, query, following)}</p>
        </>
      )}
    </section>
  );
}

/** Whether a predicted token is one of the pinned keys, apart from the space before it. */
function isSameWord(text: string, keys: readonly string[]): boolean {
  return text.trim() !== "" && keys.some((key) => key.trim() === text.trim());
}

/** Does the model say what it attends to? */
export function describeAnswer({ next }: TokenPrediction, keys: readonly string[]): string {
  const subject = keys.length > 1 ? "pinned span" : "pinned key";
  const index = next.findIndex(([text]) => isSameWord(text, keys));
  const [text = "", probability = 0] = next[index] ?? [];
  if (index < 0) return `The model does not predict the ${subject}: it is not among the ${next.length} most likely tokens.`;
  const name = keys.length > 1 ? `“${formatTitle(text)}” of the ${subject}` : `the ${subject}`;
  return `The model predicts ${name}${index === 0 ? "" : ` ${formatOrdinal(index + 1)}`}, with ${formatPercent(probability)}.`;
}

export function describeSurprise(at: TokenPrediction, after: TokenPrediction | undefined, query = "", following = ""): string {
  const parts: [TokenPrediction | undefined, string, string][] = [
    [at, "This token", query],
    [after, "The token that follows in the text", following],
  ];
  return parts
    .flatMap(([token, name, text]) =>
      token?.surprise == null || text === ""
        ? []
        : [`${name} had a surprise of ${formatMeasure(token.surprise)} nats${token.rank === null ? "" : `, rank ${formatCount(token.rank)}`}.`],
    )
    .join(" ");
}
