/** Commands of the Ask box: those of keys, by name. */

import { KEYS, formatKey, type Action } from "../keys";
import type { AskCommand } from "./suggestions";

const COMMANDS: readonly (readonly [action: Action, name: string, words: string])[] = [
  ["export", "Save", "export picture figure png svg csv npy html numbers page"],
  ["copyLink", "Copy link", "share address url"],
  ["toggleUnmasked", "Without the mask", "causal unmasked"],
  ["toggleSink", "Hide first token", "sink"],
  ["compare", "Compare with another head", "difference B"],
  ["blink", "Swap A and B", "blink"],
  ["showTable", "Strongest links", "table"],
  ["showMap", "Map", "show heatmap"],
  ["showText", "Text", "show"],
  ["showHeads", "Heads", "show all pictures scores table"],
  ["showSentence", "Type a sentence", "run model own"],
  ["fit", "Fit the whole matrix", "zoom out"],
  ["cycleChannel", "What a pixel shows", "average mean largest strong links marked"],
  ["unpin", "Remove pins", "clear unpin"],
  ["follow", "Follow the strongest key", ""],
  ["nextHead", "Next head of the ranking", ""],
  ["help", "Help", "keys keyboard tour shortcuts"],
];

export function createAskCommands(handlers: Readonly<Record<Action, () => void>>): readonly AskCommand[] {
  return COMMANDS.map(([action, name, words]) => {
    const row = KEYS.find((one) => one.action === action);
    const key = row?.keys[0];
    return { name, words, key: row && key !== undefined ? formatKey(key, row) : "", run: handlers[action] };
  });
}
