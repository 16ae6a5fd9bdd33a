/** The steps from a query and a key to the output, one card each; a card asks for a prediction before it opens. */

import type { ComponentChildren, JSX } from "preact";
import { formatToken } from "../paint/token_text";
import { CLAIMS } from "./claims";
import { PredictionForm } from "./prediction_form";
import { judgePrediction, type Prediction, type StepName } from "./predictions";

/** What was predicted at a step, in a sentence. */
export interface Judgement {
  readonly isRight: boolean;
  readonly text: string;
}

export type Judgements = Readonly<Partial<Record<StepName, Judgement>>>;

export interface Card<Pair> {
  readonly title: string;
  readonly body: (pair: Pair) => ComponentChildren;
}

export interface StepListOptions<Pair> {
  readonly pair: Pair;
  /** Changes with the pair. */
  readonly pairName: string;
  readonly steps: readonly StepName[];
  readonly cards: Readonly<Partial<Record<StepName, Card<Pair>>>>;
  /** The number of steps that are shown. */
  readonly numShown: number;
  readonly judgements: Judgements;
  /** Where the pages of labs are, or "" where only the command can be named. */
  readonly labs: string;
  /** The first card: query and key. */
  readonly children: ComponentChildren;
  predict(step: StepName): Prediction;
  show(step: StepName, judgement: Judgement | null): void;
}

export function StepList<Pair>({ pair, pairName, steps, cards, numShown, judgements, labs, children, predict, show }: StepListOptions<Pair>): JSX.Element {
  return (
    <ol class="steps-list">
      <li class="step">{children}</li>
      {steps.map((name, index) => {
        const card = cards[name];
        const judgement = judgements[name];
        if (index > numShown || !card) return null;
        return (
          <li key={name} class="step" data-step={name}>
            <h2>{card.title}</h2>
            {index === numShown ? (
              <PredictionForm key={pairName} prediction={predict(name)} answer={(guess) => show(name, judgePrediction(predict(name), guess))} skip={() => show(name, null)} />
            ) : (
              <>
                {judgement && (
                  <p class={judgement.isRight ? "right" : "wrong"} role="status">
                    {judgement.isRight ? "✓ " : "✗ "}
                    {judgement.text}
                  </p>
                )}
                {card.body(pair)}
                <Claim step={name} labs={labs} />
              </>
            )}
          </li>
        );
      })}
    </ol>
  );
}

/** A claim of a text about a step, and the verdict of the lab that tests it. */
function Claim({ step, labs }: { readonly step: StepName; readonly labs: string }): JSX.Element {
  const { claim, text, verdict, lab } = CLAIMS[step];
  return (
    <p class="soft claim">
      Claim {claim}: {text} Verdict of {labs === "" ? <code>attnscope lab run {lab}</code> : <>the lab <a href={`${labs}${lab}.html`}>{lab}</a></>}: <b>{verdict}</b>.
    </p>
  );
}

/** The buttons above the list: show all, or hide them again. */
export function ShowSteps({ numShown, numSteps, setShown }: { readonly numShown: number; readonly numSteps: number; setShown(count: number): void }): JSX.Element {
  return (
    <div class="steps-show">
      {numShown < numSteps ? (
        <button type="button" onClick={() => setShown(numSteps)}>
          Show all steps
        </button>
      ) : (
        <button type="button" onClick={() => setShown(0)}>
          Hide steps and predict again
        </button>
      )}
      <span class="soft">
        {Math.min(numShown, numSteps)} of {numSteps} steps shown
      </span>
    </div>
  );
}

export function Result({ children }: { readonly children: ComponentChildren }): JSX.Element {
  return <p class="result">{children}</p>;
}

export function Token({ text = "" }: { readonly text?: string | undefined }): JSX.Element {
  return <bdi class="token">{formatToken(text)}</bdi>;
}
