/** Names of positions, and the sentences above and below the picture. */

import { formatWeight } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import type { Side } from "../server/protocol";
import type { PictureKind } from "../state";
import type { Picture } from "./paint_picture";
import { ABSENT, findPatch, findSpecial, getPosition } from "./patch_values";
import type { LoadedOptions } from "./picture_options";

/** What a click brings where nothing is pinned. */
const INVITATIONS: Readonly<Record<PictureKind, string>> = { query: "what it attends to", key: "which patches attend to it", received: "which patches attend to it", rollout: "its rollout" };

export function namePosition({ context, shown, patches }: LoadedOptions, on: Side, position: number): string {
  const side = patches[on];
  const patch = side && findPatch(side, position);
  if (patch) return side.grid[0] > 1 ? `patch ${patch.row},${patch.column} of frame ${patch.frame}` : `patch ${patch.row},${patch.column}`;
  const special = side && findSpecial(side, position);
  const text = special ?? context.traces.getTexts(shown.meta).get(shown.layer, on, position)?.trim();
  return text ? formatTitle(text, 32) : `token ${position}`;
}

export function describePicture(options: LoadedOptions): string {
  const { chosen, map, state, isReady } = options;
  if (!isReady) return "loading";
  const [first, last] = chosen.positions ?? [0, 0];
  const name = namePosition(options, chosen.kind === "key" ? "key" : "query", first) + (last > first ? ` to ${namePosition(options, chosen.kind === "key" ? "key" : "query", last)}` : "");
  switch (chosen.kind) {
    case "query":
      return `${name} attends to${chosen.isDefault ? " (click a patch to pin another query)" : ""}`;
    case "key":
      return `attends to ${name}${chosen.isDefault ? " (click a patch to pin another key)" : ""}`;
    case "received":
      return `all queries attend to, as a mean${chosen.isDefault ? ` (click a patch to see ${INVITATIONS[state.pictureKind]})` : ""}`;
    case "rollout":
      return `rollout of ${name}, ${map.num_layers ?? 1} layers, all heads`;
  }
}

/** The patch under the cursor and its value. */
export function describeCursor(options: LoadedOptions, picture: Picture): string {
  const { local, side, frame } = options;
  if (local.corner && local.cursor && (local.corner.row !== local.cursor.row || local.corner.column !== local.cursor.column)) return "Release to choose this region.";
  if (!local.cursor) return "Click to pin a patch; drag to choose a region.";
  const value = picture.values[local.cursor.row * picture.columns + local.cursor.column] ?? NaN;
  const position = getPosition(side, frame, local.cursor);
  const what = Number.isNaN(value) ? (position === ABSENT ? "not in this layer" : "hidden, a sink") : formatWeight(value);
  return `patch ${local.cursor.row},${local.cursor.column}: ${what}`;
}

