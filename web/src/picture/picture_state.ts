/** What the picture view shows: its own state, and which positions the picture is about. */

import type { Patches } from "../server/protocol";
import type { PictureKind, State } from "../state";
import type { Patch } from "./patch_values";

/** Of one request. */
const MAX_POSITIONS = 256;

/** What only this view knows. */
export interface PictureState {
  /** The index in `Meta.images`. */
  readonly image: number;
  readonly frame: number;
  /** The patch under the pointer, or that the arrow keys have reached. */
  readonly cursor: Patch | null;
  /** Where a region begins, while it is chosen. */
  readonly corner: Patch | null;
  readonly opacity: number;
  /** Whether the colours of all heads mean the same weights; otherwise each head has the brightest colour. */
  readonly oneScale: boolean;
}

export interface Chosen {
  readonly kind: PictureKind;
  /** First and last; null for all queries. */
  readonly positions: readonly [number, number] | null;
  /** Whether it is about the class token or all queries, because nothing is pinned. */
  readonly isDefault: boolean;
}

/** What the picture is about: what is pinned, else the class token, else all queries. */
export function choosePositions({ pictureKind: kind, pinQuery, pinQueryEnd, pinKey, pinKeyEnd }: State, patches: Patches): Chosen {
  if (kind === "received") return { kind, positions: null, isDefault: false };
  const [first, end] = kind === "key" ? [pinKey, pinKeyEnd] : [pinQuery, kind === "rollout" ? null : pinQueryEnd];
  if (first !== null) return { kind, positions: [first, Math.min(end ?? first, first + MAX_POSITIONS - 1)], isDefault: false };
  const token = patches[kind === "key" ? "key" : "query"]?.special.find(([name]) => name === "class");
  if (token) return { kind, positions: [token[1], token[1]], isDefault: true };
  return { kind: "received", positions: null, isDefault: true };
}
