/**
 * The keyboard: one table that both decides what a key does and is shown as the help list.
 *
 * In: a key event. Out: the name of an action, or nothing.
 * Does not know: what the actions do; the application gives one function for each name.
 */

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
  { keys: ["Escape"], action: "unpin", says: "let go of the pins, then back to the map", group: "Read" },
  { keys: ["f"], action: "follow", says: "follow the strongest key of this query", group: "Read" },
  { keys: ["b"], action: "back", says: "go back where you followed from", group: "Read" },
  { keys: ["]"], action: "nextHead", says: "next head", group: "Choose" },
  { keys: ["["], action: "previousHead", says: "previous head", group: "Choose" },
  { keys: ["}"], action: "nextLayer", says: "next layer", group: "Choose" },
  { keys: ["{"], action: "previousLayer", says: "previous layer", group: "Choose" },
  { keys: ["m"], action: "showMap", says: "map", group: "Choose" },
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

/** Listen on the page while the explorer has the focus; nothing focused at all counts as the explorer. */
export function listenForKeys(root: HTMLElement, enabled: () => boolean, act: (action: Action) => void): () => void {
  const page = root.ownerDocument;
  const heard = (event: KeyboardEvent): void => {
    const target = event.target instanceof HTMLElement ? event.target : null;
    if (event.defaultPrevented || (target && target !== page.body && !root.contains(target))) return;
    if (target?.closest("dialog") || takenBy(target, event.key)) return;
    const action = actionOf(event);
    // Help stays reachable: it holds the switch that turns the rest on again.
    if (!action || !(enabled() || action === "help")) return;
    event.preventDefault();
    act(action);
  };
  page.addEventListener("keydown", heard);
  return () => page.removeEventListener("keydown", heard);
}

const STORED = "sightline.keys";

/** Single-key shortcuts can be switched off (they fire by accident under speech input), and stay off. */
export function keysEnabled(): boolean {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true; // storage refused, as in private windows: the default holds for this visit
  }
}

export function enableKeys(enabled: boolean): void {
  try {
    if (enabled) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, "off");
  } catch {
    // Not remembered then; the caller keeps it for this visit.
  }
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
