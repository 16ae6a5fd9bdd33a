/** Commands of the Ask box: those of keys, by name. */

import { KEYS, formatKey, type Action } from "../keys";
import type { AskCommand } from "./suggestions";

const COMMANDS: readonly (readonly [action: Action, name: string, words: string])[] = [
  ["export", "Save", "export picture figure numbers page"],
  ["copyLink", "Copy link", "share"],
  ["toggleUnmasked", "Without the mask", "causal unmasked"],
  ["toggleSink", "Hide first token", "sink"],
  ["compare", "Compare with another head", "difference B"],
  ["blink", "Swap A and B", "blink"],
  ["showTable", "Strongest links", "table"],
  ["showMap", "Map", ""],
  ["showText", "Text", ""],
  ["showHeads", "Heads", "scores"],
  ["showSentence", "Type a sentence", ""],
  ["fit", "Fit the whole matrix", ""],
  ["cycleChannel", "What a pixel shows", "average largest"],
  ["toggleLarge", "Presentation size", "large projector"],
  ["unpin", "Remove pins", ""],
  ["follow", "Follow the strongest key", ""],
  ["nextHead", "Next head of the ranking", ""],
  ["help", "Help", "keys tour"],
];

export function createAskCommands(handlers: Readonly<Record<Action, () => void>>): readonly AskCommand[] {
  return COMMANDS.map(([action, name, words]) => {
    const row = KEYS.find((one) => one.action === action);
    const key = row?.keys[0];
    return { name, words, key: row && key !== undefined ? formatKey(key, row) : "", run: handlers[action] };
  });
}
