/**
 * The bar above two compared heads: chooses the second head and the mode, and shows messages.
 *
 * Like the toolbar it writes to the store and reads from it, and keeps nothing of its own.
 */

import { getAvailableHeads } from "../head_order";
import { button, element, field, replaceChildren, type Child } from "../panels/dom";
import { segments, setPressed, toggle } from "../panels/controls";
import { createHeadSelects } from "../panels/navigator";
import { formatTitle } from "../paint/token_text";
import { formatHeadName, type Meta, type Session, type TraceHead } from "../server/protocol";
import { clampBits, COMPARE_MODES, type ComparedHead, type CompareMode, type State, type Store } from "../state";

export interface CompareBarState {
  readonly state: State;
  readonly compare: ComparedHead;
  readonly one: TraceHead;
  /** Of the other head; null while it is not known. */
  readonly meta: Meta | null;
  /** What there is to compare with: trace and name. */
  readonly traces: readonly (readonly [trace: string, name: string])[];
  /** Why two such heads cannot be shown so; "" where they can. */
  readonly problems: Readonly<Record<CompareMode, string>>;
  readonly words: readonly string[];
}

export interface CompareBar {
  readonly element: HTMLElement;
  update(facts: CompareBarState): void;
}

const MODES: Readonly<Record<CompareMode, readonly [string, string]>> = {
  side: ["Side by side", "Two maps with the same colours"],
  split: ["Split", "One square: A below the diagonal, B turned over above it"],
  ratio: ["Ratio", "The ratio of the weights of A and B, as log2(A / B)"],
};

export function createCompareBar(store: Store, session: Session, swap: () => void): CompareBar {
  const updateCompared = (part: Partial<ComparedHead>): void => {
    const { compare } = store.get();
    if (compare) store.set({ compare: { ...compare, ...part } }, "push");
  };
  const name = element("span");
  const trace = element("select", { "aria-label": "Trace of B" });
  trace.addEventListener("change", () => {
    const { trace: own, layer, head } = store.get();
    // Another text starts with the same head.
    updateCompared(trace.value === own ? { trace: "" } : { trace: trace.value, layer, head });
  });
  const heads = element("span", { class: "compared-b", role: "group", "aria-label": "Head of B" });
  const modes = segments<CompareMode>(
    "How the two are shown",
    COMPARE_MODES.map((mode) => [mode, ...MODES[mode]] as const),
    (mode) => updateCompared({ mode }),
  );
  const lock = toggle("Locked", "Both maps move together", () => store.set({ locked: !store.get().locked }));
  const bits = element("input", { type: "number", min: 0.5, max: 10, step: 0.5, class: "bits" });
  bits.addEventListener("change", () => {
    if (Number.isFinite(bits.valueAsNumber)) store.set({ bits: clampBits(bits.valueAsNumber) });
    bits.value = String(store.get().bits);
  });
  const range = field("\u00b1", bits, { title: "The last colours are for a factor of 2 to this power" });
  range.append("bits");
  const words = element("p", { class: "soft compared-words", role: "status" });
  let [listedTraces, listedHead] = ["", ""];

  const bar = element(
    "div",
    { class: "bar compare-bar", role: "group", "aria-label": "Comparison", hidden: true },
    ...[name, element("span", { class: "soft" }, "with"), element("strong", {}, "B"), trace, heads],
    button("Swap", swap, { title: "Swap A and B (v; hold the key to swap them temporarily)" }),
    ...[modes.element, lock, range],
    element("div", { class: "spring" }),
    button("Stop comparing", () => store.set({ compare: null }, "push"), { title: "Back to one head (c)" }),
    words,
  );

  return {
    element: bar,
    update({ state, compare, one, meta, traces, problems, words: sentences }) {
      replaceChildren(name, element("strong", {}, "A"), ` ${formatHeadName(one.meta, one.layer, one.head)}`);
      const choices = traces.flat().join("\n");
      if (choices !== listedTraces)
        replaceChildren(trace, ...traces.map(([value, label]) => element("option", { value }, formatTitle(label, 40))));
      listedTraces = choices;
      trace.hidden = traces.length < 2;
      trace.value = compare.trace || state.trace;
      const wanted = `${meta?.trace} ${compare.layer} ${compare.head}`;
      if (wanted !== listedHead)
        replaceKeepingFocus(
          heads,
          meta
            ? createHeadSelects(meta, [compare.layer, compare.head], getAvailableHeads(session), (layer, head) =>
                updateCompared({ layer, head }),
              )
            : [],
        );
      listedHead = wanted;
      bar.dataset["mode"] = compare.mode;
      modes.update(compare.mode);
      for (const mode of COMPARE_MODES) modes.enable(mode, problems[mode] === "", problems[mode]);
      lock.hidden = compare.mode !== "side";
      setPressed(lock, state.locked);
      range.hidden = compare.mode !== "ratio";
      bits.value = String(state.bits);
      const sentence = sentences.filter((part) => part !== "").join(" ");
      if (words.textContent !== sentence) words.textContent = sentence;
      words.hidden = sentence === "";
    },
  };
}

/** A list from which one has just chosen is made anew: the keyboard stays on it. */
function replaceKeepingFocus(parent: HTMLElement, children: readonly Child[]): void {
  const { activeElement } = parent.getRootNode() as Document | ShadowRoot;
  const at = [...parent.querySelectorAll("select")].findIndex((one) => one === activeElement);
  replaceChildren(parent, ...children);
  parent.querySelectorAll("select")[at]?.focus();
}
