/** Where the card with the numbers of a head stands: beside the head, on the side that has room. */

import type { Box } from "../paint/surface";

export function placeCard(card: HTMLElement, stage: HTMLElement, box: Box, width: number): void {
  const right = box.left + box.width + 8;
  const left = right + width > stage.clientWidth ? Math.max(0, box.left - width - 8) : right;
  const top = Math.max(0, Math.min(box.top, stage.clientHeight - card.offsetHeight - 4));
  Object.assign(card.style, { left: `${left}px`, top: `${top}px`, width: `${width}px` });
}
