/** Where to place a card next to its target. */

import type { Box } from "../geometry/box";

const GAP = 12;

/** Right of the target, left of it or below it, whichever fits first inside `all`; null when none does. */
export function placeBeside(target: Box, card: Pick<Box, "width" | "height">, all: Box): Box | null {
  const clampStart = (from: number, low: number, room: number): number => Math.max(low, Math.min(from, low + room));
  // Next to something tall the card is aligned to its bottom, because its top matters most.
  const tall = target.height > 2 * card.height;
  const level = tall ? target.top + target.height - card.height : target.top;
  const top = clampStart(level, all.top + GAP, all.height - card.height - 2 * GAP);
  const left = clampStart(target.left, all.left + GAP, all.width - card.width - 2 * GAP);
  const places = [
    { left: target.left + target.width + GAP, top },
    { left: target.left - card.width - GAP, top },
    { left, top: target.top + target.height + GAP },
  ];
  const found = places.find(
    (place) =>
      place.left >= all.left &&
      place.top >= all.top &&
      place.left + card.width <= all.left + all.width &&
      place.top + card.height <= all.top + all.height,
  );
  return found ? { ...found, ...card } : null;
}
