/** The settings of the computation; what a stage fixes is written instead of offered. */

import type { ComponentChildren, JSX } from "preact";
import type { MaskKind, Positions } from "./attention";
import { MAX_WORDS } from "./embeddings";
import { getChoices, getHeadNames, PRESETS, type Settings } from "./stages";

export interface ControlsOptions {
  readonly settings: Settings;
  readonly numEdits: number;
  change(changes: Partial<Settings>): void;
  undoEdits(): void;
}

const MASK_NAMES: Record<MaskKind, string> = { bidirectional: "bidirectional", causal: "causal", cross: "cross-attention" };
const POSITION_NAMES: Record<Positions, string> = { none: "none", sinusoidal: "sinusoidal", rotary: "rotary (RoPE)" };

export function Controls({ settings, numEdits, change, undoEdits }: ControlsOptions): JSX.Element {
  const { stage, divide, temperature, mask, positions, numHeads, headDim, head, shuffleSeed } = settings;
  const choices = getChoices(settings);
  const names = getHeadNames(settings);
  return (
    <section class="controls" aria-label="Settings">
      {stage === "sentence" && <SentenceField settings={settings} change={change} />}
      <div class="segments" role="group" aria-label="Attention">
        {choices.masks.map((name) => (
          <button key={name} type="button" aria-pressed={mask === name} onClick={() => change({ mask: name })}>
            {MASK_NAMES[name]}
          </button>
        ))}
      </div>
      <label class="switch">
        <input type="checkbox" checked={divide} onChange={({ currentTarget }) => change({ divide: currentTarget.checked })} />
        divide by √dₖ
      </label>
      <label class="field">
        <span>temperature</span>
        <input type="range" min="-2" max="2" step="0.25" value={Math.log2(temperature)} aria-valuetext={temperature.toFixed(2)} onInput={({ currentTarget }) => change({ temperature: 2 ** Number(currentTarget.value) })} />
        <output>{temperature.toFixed(2)}</output>
      </label>
      <Choice label="d_k" value={headDim} choices={choices.headDims.map((dim) => [dim, String(dim)])} choose={(dim) => change({ headDim: dim, positions: dim === 1 && positions === "rotary" ? "none" : positions })}>
        dₖ
      </Choice>
      {choices.numHeads.length > 1 && (
        <Choice label="heads" value={numHeads} choices={choices.numHeads.map((count) => [count, String(count)])} choose={(count) => change({ numHeads: count, head: 0, ...(stage === "hand" ? { headDim: 2 / count, positions: "none" } : {}) })}>
          heads
        </Choice>
      )}
      {names.length > 1 && (
        <Choice label="shown head" value={head} choices={names.map((name, index) => [index, name])} choose={(index) => change({ head: index })}>
          show
        </Choice>
      )}
      <label class="field">
        <span>positions</span>
        <select value={positions} onChange={({ currentTarget }) => change({ positions: currentTarget.value as Positions })}>
          {choices.positions.map((name) => (
            <option key={name} value={name}>
              {POSITION_NAMES[name]}
            </option>
          ))}
        </select>
      </label>
      <button type="button" onClick={() => change({ shuffleSeed: shuffleSeed + 1 })}>
        Shuffle tokens
      </button>
      {shuffleSeed > 0 && (
        <button type="button" onClick={() => change({ shuffleSeed: 0 })}>
          Original order
        </button>
      )}
      {numEdits > 0 && (
        <button type="button" onClick={undoEdits}>
          Undo {numEdits === 1 ? "edit" : `${numEdits} edits`}
        </button>
      )}
    </section>
  );
}

interface ChoiceOptions {
  readonly label: string;
  readonly value: number;
  readonly choices: readonly (readonly [number, string])[];
  choose(value: number): void;
  readonly children: ComponentChildren;
}

function Choice({ label, value, choices, choose, children }: ChoiceOptions): JSX.Element {
  return (
    <label class="field">
      <span>{children}</span>
      {choices.length === 1 ? (
        <output>{choices[0]?.[1]}</output>
      ) : (
        <select aria-label={label} value={value} onChange={({ currentTarget }) => choose(Number(currentTarget.value))}>
          {choices.map(([number, name]) => (
            <option key={number} value={number}>
              {name}
            </option>
          ))}
        </select>
      )}
    </label>
  );
}

function SentenceField({ settings, change }: Pick<ControlsOptions, "settings" | "change">): JSX.Element {
  const { sentence, memory, mask } = settings;
  const isPreset = PRESETS.includes(sentence);
  return (
    <form
      class="sentence"
      onSubmit={(event) => {
        event.preventDefault();
        const fields = new FormData(event.currentTarget);
        const read = (name: string, before: string): string => {
          const text = String(fields.get(name) ?? before).trim();
          return text === "" ? before : text;
        };
        change({ sentence: read("sentence", sentence), memory: read("memory", memory), shuffleSeed: 0 });
      }}
    >
      <label class="field wide">
        <span>sentence</span>
        <input key={sentence} name="sentence" maxLength={200} defaultValue={sentence} autocomplete="off" spellcheck={false} />
      </label>
      {mask === "cross" && (
        <label class="field wide">
          <span>keys and values from</span>
          <input key={memory} name="memory" maxLength={200} defaultValue={memory} autocomplete="off" spellcheck={false} />
        </label>
      )}
      <button type="submit">Use it</button>
      <label class="field">
        <span>or a preset</span>
        <select value={isPreset ? sentence : ""} onChange={({ currentTarget }) => currentTarget.value !== "" && change({ sentence: currentTarget.value, shuffleSeed: 0 })}>
          {!isPreset && <option value="">typed</option>}
          {PRESETS.map((preset) => (
            <option key={preset} value={preset}>
              {preset}
            </option>
          ))}
        </select>
      </label>
      <span class="soft">at most {MAX_WORDS} words</span>
    </form>
  );
}
