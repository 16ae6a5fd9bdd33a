/**
 * Creates elements without parsing markup. Functions are named after the element that they create.
 *
 * Text reaches the page as text nodes and nothing else, so a token that looks like markup stays a token.
 */

import { formatToken } from "../paint/token_text";

export type Child = Node | string | null | undefined | false;
export type Attributes = Readonly<Record<string, string | number | boolean | null | undefined>>;

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[Tag] {
  const created = document.createElement(tag);
  setAttributes(created, attributes);
  append(created, children);
  return created;
}

export function setAttributes(target: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    // The content security policy would drop handlers and inline styles silently.
    if (/^on|^style$|^srcdoc$/i.test(name)) throw new Error(`the attribute ${name} is not allowed here`);
    if (value === false || value === null || value === undefined) target.removeAttribute(name);
    else target.setAttribute(name, value === true ? "" : String(value));
  }
}

export function append(parent: Node, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(typeof child === "string" ? document.createTextNode(child) : child);
  }
}

export function replaceChildren(parent: Element, ...children: readonly Child[]): void {
  parent.textContent = "";
  append(parent, children);
}

export function button(
  label: string | Node,
  onClick: (event: MouseEvent) => void,
  attributes: Attributes = {},
): HTMLButtonElement {
  const created = element("button", { type: "button", ...attributes }, label);
  created.addEventListener("click", onClick);
  return created;
}

/** The text of a token, isolated from the direction of the text around it. */
export function token(text: string | undefined, position: number): HTMLElement {
  if (text === undefined) return element("bdi", { class: "token token-unknown" }, `#${position}`);
  return element("bdi", { class: "token" }, formatToken(text));
}

/** A label and its control in one line. */
export function field(label: string, control: HTMLElement, attributes: Attributes = {}): HTMLLabelElement {
  return element("label", { class: "field", ...attributes }, element("span", {}, label), control);
}

export function select<Value extends string>(
  choices: readonly (readonly [Value, string])[],
  onChoose: (value: Value) => void,
  attributes: Attributes = {},
): HTMLSelectElement {
  const created = element("select", attributes, ...choices.map(([value, label]) => element("option", { value }, label)));
  created.addEventListener("change", () => {
    const value = choices.find(([known]) => known === created.value);
    if (value) onChoose(value[0]);
  });
  return created;
}
