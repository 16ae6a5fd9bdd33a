/** Toggle buttons, groups of buttons of which one is pressed, and menus that unfold. */

import { button, element } from "./dom";

export function toggle(label: string, title: string, act: () => void): HTMLButtonElement {
  return button(label, act, { "aria-pressed": "false", title, class: "toggle" });
}

export function setPressed(target: HTMLButtonElement, pressed: boolean): void {
  target.setAttribute("aria-pressed", String(pressed));
}

export interface Menu {
  readonly element: HTMLDetailsElement;
  close(): void;
}

/** A button that unfolds controls; Escape, a press elsewhere, and where wanted a choice fold them again. */
export function createMenu(label: string, title: string, body: HTMLElement, signal: AbortSignal, closesOnChoice = false): Menu {
  const name = element("summary", { title }, label);
  const menu = element("details", { class: "menu" }, name, body);
  const close = (): void => {
    menu.open = false;
  };
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.stopPropagation();
    close();
    name.focus();
  });
  menu.addEventListener("toggle", () => {
    if (!menu.open) return;
    const pressed = (event: Event): void => {
      if (!menu.open) remove();
      else if (!event.composedPath().includes(menu)) close();
    };
    const remove = (): void => menu.ownerDocument.removeEventListener("pointerdown", pressed, true);
    menu.ownerDocument.addEventListener("pointerdown", pressed, { capture: true, signal });
  });
  if (closesOnChoice) body.addEventListener("click", close);
  return { element: menu, close };
}

export interface Segments<Value> {
  readonly element: HTMLElement;
  update(value: Value): void;
  enable(value: Value, enabled: boolean, why: string): void;
  hide(value: Value, hidden: boolean): void;
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
    hide(value, hidden) {
      const made = buttons[choices.findIndex(([known]) => known === value)];
      if (made) made.hidden = hidden;
    },
    enable(value, enabled, why) {
      const at = choices.findIndex(([known]) => known === value);
      const made = buttons[at];
      if (!made) return;
      made.disabled = !enabled;
      made.title = enabled ? (choices[at]?.[2] ?? "") : why;
    },
  };
}
