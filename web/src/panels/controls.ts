/** Toggle buttons, and groups of buttons of which one is pressed. */

import { button, element } from "./dom";

export function toggle(label: string, title: string, act: () => void): HTMLButtonElement {
  return button(label, act, { "aria-pressed": "false", title, class: "toggle" });
}

export function setPressed(target: HTMLButtonElement, pressed: boolean): void {
  target.setAttribute("aria-pressed", String(pressed));
}

export interface Segments<Value> {
  readonly element: HTMLElement;
  update(value: Value): void;
  enable(value: Value, enabled: boolean, why: string): void;
}

/** A few choices side by side, one button each. */
export function segments<Value extends string>(
  label: string,
  choices: readonly (readonly [Value, string, string?])[],
  onChoose: (value: Value) => void,
): Segments<Value> {
  const buttons = choices.map(([value, text, title]) => toggle(text, title ?? "", () => onChoose(value)));
  return {
    element: element("div", { class: "segments", role: "group", "aria-label": label }, ...buttons),
    update: (current) => buttons.forEach((made, index) => setPressed(made, choices[index]?.[0] === current)),
    enable(value, enabled, why) {
      const at = choices.findIndex(([known]) => known === value);
      const made = buttons[at];
      if (!made) return;
      made.disabled = !enabled;
      made.title = enabled ? (choices[at]?.[2] ?? "") : why;
    },
  };
}
