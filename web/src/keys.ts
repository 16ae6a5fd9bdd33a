/**
 * The keyboard: one table that both decides what a key does and is shown as the help list.
 *
 * In: a key event. Out: the name of an action, or nothing.
 * Does not know: what the actions do; the application gives one function for each name.
 */

import { remember, remembered } from "./browser_storage";

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
  | "nextHead"
  | "previousHead"
  | "nextLayer"
  | "previousLayer"
  | "showMap"
  | "showText"
  | "showHeads"
  | "showSentence"
  | "showTable"
  | "find"
  | "findNext"
  | "findPrevious"
  | "goTo"
  | "cycleChannel"
  | "toggleLinear"
  | "toggleSink"
  | "toggleWhatIf"
  | "compare"
  | "blink"
  | "export"
  | "copyLink"
  | "help";

export interface KeyRow {
  readonly keys: readonly string[];
  readonly shift?: true;
  readonly action: Action;
  readonly says: string;
  readonly group: "Move" | "Read" | "Choose" | "Find" | "Show";
}

// Keys are compared by what they type, not by where they lie, so the table is true on every layout.
// `s` is down, as in every WASD; the sentence view is therefore `i`, as in "insert text".
export const KEYS: readonly KeyRow[] = [
  { keys: ["ArrowLeft", "a"], action: "panLeft", says: "move left", group: "Move" },
  { keys: ["ArrowRight", "d"], action: "panRight", says: "move right", group: "Move" },
  { keys: ["ArrowUp", "w"], action: "panUp", says: "move up", group: "Move" },
  { keys: ["ArrowDown", "s"], action: "panDown", says: "move down", group: "Move" },
  { keys: ["ArrowLeft", "A"], shift: true, action: "screenLeft", says: "one screen left", group: "Move" },
  { keys: ["ArrowRight", "D"], shift: true, action: "screenRight", says: "one screen right", group: "Move" },
  { keys: ["ArrowUp", "W"], shift: true, action: "screenUp", says: "one screen up", group: "Move" },
  { keys: ["ArrowDown", "S"], shift: true, action: "screenDown", says: "one screen down", group: "Move" },
  { keys: ["+", "="], action: "zoomIn", says: "zoom in", group: "Move" },
  { keys: ["-"], action: "zoomOut", says: "zoom out", group: "Move" },
  { keys: ["0"], action: "fit", says: "fit the whole matrix", group: "Move" },
  { keys: ["1"], action: "onePixel", says: "one token a pixel", group: "Move" },
  { keys: ["."], action: "nextQuery", says: "next query (row)", group: "Read" },
  { keys: [","], action: "previousQuery", says: "previous query (row)", group: "Read" },
  { keys: [">"], action: "nextKey", says: "next key (column)", group: "Read" },
  { keys: ["<"], action: "previousKey", says: "previous key (column)", group: "Read" },
  { keys: ["Enter"], action: "pin", says: "pin the cell under the pointer, or in the middle", group: "Read" },
  { keys: ["Escape"], action: "unpin", says: "let go of pins, then stop comparing, then to the map", group: "Read" },
  { keys: ["f"], action: "follow", says: "follow the strongest key of this query", group: "Read" },
  { keys: ["b"], action: "back", says: "go back where you followed from", group: "Read" },
  { keys: ["]"], action: "nextHead", says: "next head", group: "Choose" },
  { keys: ["["], action: "previousHead", says: "previous head", group: "Choose" },
  { keys: ["}"], action: "nextLayer", says: "next layer", group: "Choose" },
  { keys: ["{"], action: "previousLayer", says: "previous layer", group: "Choose" },
  { keys: ["m"], action: "showMap", says: "map", group: "Choose" },
  { keys: ["t"], action: "showText", says: "text", group: "Choose" },
  { keys: ["h"], action: "showHeads", says: "all heads", group: "Choose" },
  { keys: ["i"], action: "showSentence", says: "type a sentence", group: "Choose" },
  { keys: ["r"], action: "showTable", says: "table of the strongest links in view", group: "Choose" },
  { keys: ["/"], action: "find", says: "find a token", group: "Find" },
  { keys: ["n"], action: "findNext", says: "next find", group: "Find" },
  { keys: ["N"], action: "findPrevious", says: "previous find", group: "Find" },
  { keys: ["g"], action: "goTo", says: "go to a position", group: "Find" },
  { keys: ["x"], action: "cycleChannel", says: "mean and spikes, largest, mean", group: "Show" },
  { keys: ["l"], action: "toggleLinear", says: "logarithmic or linear colours", group: "Show" },
  { keys: ["k"], action: "toggleSink", says: "hide the first token (sink)", group: "Show" },
  { keys: ["u"], action: "toggleWhatIf", says: "what if it could look ahead", group: "Show" },
  { keys: ["c"], action: "compare", says: "compare with another head, or stop", group: "Show" },
  { keys: ["v"], action: "blink", says: "swap the two heads; held, only while held", group: "Show" },
  { keys: ["e"], action: "export", says: "save a picture, numbers or a page", group: "Show" },
  { keys: ["y"], action: "copyLink", says: "copy a link to this view", group: "Show" },
  { keys: ["?"], action: "help", says: "this list", group: "Show" },
];

export interface Press {
  readonly key: string;
  readonly shiftKey: boolean;
  readonly ctrlKey: boolean;
  readonly metaKey: boolean;
  readonly altKey: boolean;
  readonly isComposing?: boolean;
}

/** What a press means, or null. Presses with Ctrl, Alt or Meta belong to the browser. */
export function actionOf(press: Press): Action | null {
  if (press.ctrlKey || press.metaKey || press.altKey || press.isComposing) return null;
  const named = press.key.length > 1;
  const row = KEYS.find(
    // Shift is part of a printed sign already ("?"), and means "one screen" on a named key.
    ({ keys, shift }) =>
      keys.includes(press.key) &&
      (!named || press.key === "Enter" || press.key === "Escape" || (shift ?? false) === press.shiftKey),
  );
  return row?.action ?? null;
}

/** Whether the element under the keyboard wants this key for itself. */
export function takenBy(
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

/** A key held longer than this does its work only while it is held. */
const HELD = 350;

export interface KeyListening {
  /** The explorer's element. */
  readonly root: HTMLElement;
  /** The whole page is the explorer's: keys count even while nothing has the focus. */
  readonly whole: boolean;
  readonly signal: AbortSignal;
  enabled(): boolean;
  /** False: it means nothing here, and the key is the browser's. */
  act(action: Action): boolean;
}

/** Listen for keys while the explorer has the focus. */
export function listenForKeys({ root, whole, signal, enabled, act }: KeyListening): void {
  const page = root.ownerDocument;
  let pressed = 0;
  const wanted = (event: KeyboardEvent): Action | null => {
    // Inside a shadow root, only the path tells where it began.
    const [first] = event.composedPath();
    const target = first instanceof HTMLElement ? first : null;
    if (event.defaultPrevented || (target && target !== page.body && !root.contains(target))) return null;
    if (target?.closest("dialog") || takenBy(target, event.key)) return null;
    const action = actionOf(event);
    // Help stays reachable: it holds the switch that turns the rest on again.
    return enabled() || action === "help" ? action : null;
  };
  const listen = (type: "keydown" | "keyup", heard: (action: Action, event: KeyboardEvent) => void): void =>
    (whole ? page : root).addEventListener(
      type,
      (event) => {
        const action = wanted(event as KeyboardEvent);
        if (action) heard(action, event as KeyboardEvent);
      },
      { signal },
    );
  listen("keydown", (action, event) => {
    if (action === "blink" && event.repeat) return;
    pressed = event.timeStamp;
    if (act(action)) event.preventDefault();
  });
  listen("keyup", (action, event) => {
    if (action === "blink" && event.timeStamp - pressed > HELD) act(action);
  });
}

/** Single-key shortcuts can be switched off (they fire by accident under speech input), and stay off. */
export function keysEnabled(): boolean {
  return !remembered("keys");
}

export function enableKeys(enabled: boolean): void {
  remember("keys", !enabled);
}

const NAMES: Readonly<Record<string, string>> = {
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
};

/** A key as it is printed on the help list. */
export function keyName(key: string, shift: boolean): string {
  const name = NAMES[key] ?? key;
  return shift && key.length > 1 ? `Shift ${name}` : name;
}

/** What moves the map means nothing where there is none: there these keys scroll. */
export function movesMap(action: Action): boolean {
  return KEYS.some((row) => row.action === action && row.group === "Move");
}
