/** The question of a step: buttons, a list, or a slider; "Show" skips it. */

import { useId, useState } from "preact/hooks";
import type { JSX } from "preact";
import type { Prediction } from "./predictions";

const MAX_BUTTONS = 5;

export interface PredictionFormOptions {
  readonly prediction: Prediction;
  answer(guess: number): void;
  skip(): void;
}

export function PredictionForm({ prediction, answer, skip }: PredictionFormOptions): JSX.Element {
  const { question, choices } = prediction;
  const [guess, setGuess] = useState(choices.length === 0 ? 0.5 : 0);
  const id = useId();
  return (
    <div class="prediction" role="group" aria-labelledby={id}>
      <p id={id}>
        <strong>Predict:</strong> {question}
      </p>
      <div class="prediction-choices">
        {choices.length === 0 ? (
          <>
            <input type="range" min="0" max="1" step="0.01" value={guess} aria-label="Predicted weight" onInput={({ currentTarget }) => setGuess(Number(currentTarget.value))} />
            <output>{guess.toFixed(2)}</output>
            <button type="button" class="primary" onClick={() => answer(guess)}>
              Check
            </button>
          </>
        ) : choices.length > MAX_BUTTONS ? (
          <>
            <select value={guess} aria-label={question} onChange={({ currentTarget }) => setGuess(Number(currentTarget.value))}>
              {choices.map((choice, index) => (
                <option key={index} value={index}>
                  {choice}
                </option>
              ))}
            </select>
            <button type="button" class="primary" onClick={() => answer(guess)}>
              Check
            </button>
          </>
        ) : (
          choices.map((choice, index) => (
            <button key={index} type="button" onClick={() => answer(index)}>
              {choice}
            </button>
          ))
        )}
        <button type="button" class="quiet" onClick={skip}>
          Show without a prediction
        </button>
      </div>
    </div>
  );
}
