/**
 * The keyboard: one table that both decides what a key does and is shown as the help list.
 *
 * In: a key event. Out: the name of an action, or nothing.
 * What the actions do is in key_handlers.ts.
 */

import { loadItem, saveItem } from "./browser_storage";

export type Action =
  | "panLeft"
  | "panRight"
  | "panUp"
  | "panDown"
  | "screenLeft"
  | "screenRight"
  | "screenUp"
  | "screenDown"
  | "zoomIn"
  | "zoomOut"
  | "fit"
  | "onePixel"
  | "nextQuery"
  | "previousQuery"
  | "nextKey"
  | "previousKey"
  | "pin"
  | "unpin"
  | "follow"
  | "back"
  | "undo"
  | "redo"
  | "nextHead"
  | "previousHead"
  | "nextLayer"
  | "previousLayer"
  | "showMap"
  | "showText"
  | "showHeads"
  | "showPicture"
  | "showSentence"
  | "showTable"
  | "find"
  | "findNext"
  | "findPrevious"
  | "goTo"
  | "cycleChannel"
  | "cycleScale"
  | "toggleSink"
  | "toggleUnmasked"
  | "compare"
  | "blink"
  | "toggleLarge"
  | "export"
  | "copyLink"
  | "help";

export interface KeyRow {
  readonly keys: readonly string[];
  readonly shift?: true;
  /** With Ctrl, or Command on a Mac. */
  readonly ctrl?: true;
  readonly action: Action;
  readonly description: string;
  readonly group: "Move" | "Read" | "Choose" | "Find" | "Show";
}

// Keys are compared by what they type, not by their place, so the table holds on every keyboard layout.
// `s` is down, as in every WASD; the sentence view is therefore `i`, as in "insert text".
export const KEYS: readonly KeyRow[] = [
  { keys: ["ArrowLeft", "a"], action: "panLeft", description: "move left", group: "Move" },
  { keys: ["ArrowRight", "d"], action: "panRight", description: "move right", group: "Move" },
  { keys: ["ArrowUp", "w"], action: "panUp", description: "move up", group: "Move" },
  { keys: ["ArrowDown", "s"], action: "panDown", description: "move down", group: "Move" },
  { keys: ["ArrowLeft", "A"], shift: true, action: "screenLeft", description: "one screen left", group: "Move" },
  { keys: ["ArrowRight", "D"], shift: true, action: "screenRight", description: "one screen right", group: "Move" },
  { keys: ["ArrowUp", "W"], shift: true, action: "screenUp", description: "one screen up", group: "Move" },
  { keys: ["ArrowDown", "S"], shift: true, action: "screenDown", description: "one screen down", group: "Move" },
  { keys: ["+", "="], action: "zoomIn", description: "zoom in", group: "Move" },
  { keys: ["-"], action: "zoomOut", description: "zoom out", group: "Move" },
  { keys: ["0"], action: "fit", description: "show the whole matrix", group: "Move" },
  { keys: ["1"], action: "onePixel", description: "one token per pixel", group: "Move" },
  { keys: ["."], action: "nextQuery", description: "next query (row)", group: "Read" },
  { keys: [","], action: "previousQuery", description: "previous query (row)", group: "Read" },
  { keys: [">"], action: "nextKey", description: "next key (column)", group: "Read" },
  { keys: ["<"], action: "previousKey", description: "previous key (column)", group: "Read" },
  { keys: ["Enter"], action: "pin", description: "pin the cell under the pointer, or in the middle", group: "Read" },
  { keys: ["Escape"], action: "unpin", description: "remove pins, then stop comparing, then show the map", group: "Read" },
  { keys: ["f"], action: "follow", description: "follow the strongest key of this query", group: "Read" },
  { keys: ["b"], action: "back", description: "go back where you followed from", group: "Read" },
  { keys: ["z"], ctrl: true, action: "undo", description: "undo", group: "Read" },
  { keys: ["z"], shift: true, ctrl: true, action: "redo", description: "redo", group: "Read" },
  { keys: ["]"], action: "nextHead", description: "next head of the ranking", group: "Choose" },
  { keys: ["["], action: "previousHead", description: "previous head of the ranking", group: "Choose" },
  { keys: ["}"], action: "nextLayer", description: "next layer", group: "Choose" },
  { keys: ["{"], action: "previousLayer", description: "previous layer", group: "Choose" },
  { keys: ["m"], action: "showMap", description: "map", group: "Choose" },
  { keys: ["t"], action: "showText", description: "text", group: "Choose" },
  { keys: ["h"], action: "showHeads", description: "all heads", group: "Choose" },
  { keys: ["o"], action: "showPicture", description: "the image that the model was given", group: "Choose" },
  { keys: ["i"], action: "showSentence", description: "type a sentence", group: "Choose" },
  { keys: ["r"], action: "showTable", description: "strongest links in view, as a table", group: "Choose" },
  { keys: ["/"], action: "find", description: "ask: words, heads, links, commands (also Ctrl+K)", group: "Find" },
  { keys: ["n"], action: "findNext", description: "next place of the words found", group: "Find" },
  { keys: ["N"], action: "findPrevious", description: "previous place of the words found", group: "Find" },
  { keys: ["g"], action: "goTo", description: "go to a position", group: "Find" },
  { keys: ["x"], action: "cycleChannel", description: "far out: average with strong links marked, largest, average", group: "Show" },
  { keys: ["l"], action: "cycleScale", description: "colours: automatic, logarithmic, linear, relative to uniform attention", group: "Show" },
  { keys: ["k"], action: "toggleSink", description: "hide the first token, or sinks of an image", group: "Show" },
  { keys: ["u"], action: "toggleUnmasked", description: "without the causal mask", group: "Show" },
  { keys: ["c"], action: "compare", description: "compare with another head, or stop", group: "Show" },
  { keys: ["v"], action: "blink", description: "swap the two heads; hold the key to swap them temporarily", group: "Show" },
  { keys: ["p"], action: "toggleLarge", description: "presentation size: everything larger", group: "Show" },
  { keys: ["e"], action: "export", description: "save a picture, numbers or a page", group: "Show" },
  { keys: ["y"], action: "copyLink", description: "copy a link to this view", group: "Show" },
  { keys: ["?"], action: "help", description: "this list", group: "Show" },
];

export interface KeyPress {
  readonly key: string;
  readonly shiftKey: boolean;
  readonly ctrlKey: boolean;
  readonly metaKey: boolean;
  readonly altKey: boolean;
  readonly isComposing?: boolean;
}

/** The action of a key press, or null. Other presses with Ctrl, Alt or Meta are left to the browser. */
export function findAction(press: KeyPress): Action | null {
  if (press.altKey || press.isComposing) return null;
  if (press.ctrlKey || press.metaKey) {
    const key = press.key.toLowerCase();
    return KEYS.find(({ keys, shift, ctrl }) => ctrl && keys.includes(key) && (shift ?? false) === press.shiftKey)?.action ?? null;
  }
  const isNamed = press.key.length > 1;
  const row = KEYS.find(
    // Shift is already part of a character ("?"), and means "one screen" on a named key.
    ({ keys, shift, ctrl }) =>
      keys.includes(press.key) &&
      !ctrl &&
      (!isNamed || press.key === "Enter" || press.key === "Escape" || (shift ?? false) === press.shiftKey),
  );
  return row?.action ?? null;
}

/** Whether the focused element handles this key itself. */
export function isHandledByTarget(
  target: { readonly tagName: string; readonly isContentEditable?: boolean } | null,
  key: string,
): boolean {
  if (!target) return false;
  if (target.isContentEditable) return true;
  switch (target.tagName) {
    case "INPUT":
    case "TEXTAREA":
    case "SELECT":
      return true;
    case "BUTTON":
    case "A":
    case "SUMMARY":
      return key === "Enter" || key === " ";
    default:
      return false;
  }
}

/** A key held longer than this has its effect only while it is held. */
const HOLD_MILLISECONDS = 350;

export interface KeyListenerOptions {
  /** The explorer's element. */
  readonly root: HTMLElement;
  /** Listen on the whole page, also while nothing has the focus. */
  readonly wholePage: boolean;
  readonly signal: AbortSignal;
  isEnabled(): boolean;
  /** Returns false where the action means nothing; the key is then left to the browser. */
  handle(action: Action): boolean;
}

/** Listen for keys while the explorer has the focus. */
export function listenForKeys({ root, wholePage, signal, isEnabled, handle }: KeyListenerOptions): void {
  const page = root.ownerDocument;
  let pressed = 0;
  const findWantedAction = (event: KeyboardEvent): Action | null => {
    // Inside a shadow root, only the composed path has the real target.
    const [first] = event.composedPath();
    const target = first instanceof HTMLElement ? first : null;
    if (event.defaultPrevented || (target && target !== page.body && !root.contains(target))) return null;
    if (target?.closest("dialog") || isHandledByTarget(target, event.key)) return null;
    const action = findAction(event);
    // Help stays reachable: it has the switch that turns the keys on again.
    return isEnabled() || action === "help" ? action : null;
  };
  const listen = (type: "keydown" | "keyup", handler: (action: Action, event: KeyboardEvent) => void): void =>
    (wholePage ? page : root).addEventListener(
      type,
      (event) => {
        const action = findWantedAction(event as KeyboardEvent);
        if (action) handler(action, event as KeyboardEvent);
      },
      { signal },
    );
  listen("keydown", (action, event) => {
    if (action === "blink" && event.repeat) return;
    pressed = event.timeStamp;
    if (handle(action)) event.preventDefault();
  });
  listen("keyup", (action, event) => {
    if (action === "blink" && event.timeStamp - pressed > HOLD_MILLISECONDS) handle(action);
  });
}

/** Ctrl+K or Cmd+K, from everywhere but a dialog. */
export function listenForAsk(root: HTMLElement, wholePage: boolean, signal: AbortSignal, ask: () => void): void {
  (wholePage ? root.ownerDocument : root).addEventListener(
    "keydown",
    (event) => {
      const { key, ctrlKey, metaKey, altKey, shiftKey } = event as KeyboardEvent;
      if (key.toLowerCase() !== "k" || ctrlKey === metaKey || altKey || shiftKey || root.querySelector("dialog[open]")) return;
      event.preventDefault();
      ask();
    },
    { signal },
  );
}

/** Single-key shortcuts can be switched off (they fire by accident under speech input), and stay off. */
export function loadKeysEnabled(): boolean {
  return loadItem("local", "keys") === null;
}

export function saveKeysEnabled(enabled: boolean): void {
  saveItem("local", "keys", enabled ? null : "yes");
}

const NAMES: Readonly<Record<string, string>> = {
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
};

/** A key as it is printed on the help list. */
export function formatKey(key: string, { shift, ctrl }: Pick<KeyRow, "shift" | "ctrl">): string {
  const name = NAMES[key] ?? key;
  if (ctrl) return `Ctrl ${shift ? "Shift " : ""}${name.toUpperCase()}`;
  return shift && key.length > 1 ? `Shift ${name}` : name;
}

/** Whether an action moves the map; in other views these keys scroll. */
export function isMapMove(action: Action): boolean {
  return KEYS.some((row) => row.action === action && row.group === "Move");
}
