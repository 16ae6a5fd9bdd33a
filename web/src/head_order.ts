/** Which heads can be opened, and which comes next. */

import type { Session } from "./server/protocol";
import { isAvailable, type HeadId } from "./state";

/** The heads that can be opened: those in a saved page, or null for all heads of the trace. */
export function getAvailableHeads({ file }: Session): readonly HeadId[] | null {
  return file?.heads ?? null;
}

/** All heads of these layers that are available. */
export function listHeads(
  layers: readonly { readonly heads: number }[],
  availableHeads: readonly HeadId[] | null,
): readonly HeadId[] {
  const all = layers.flatMap(({ heads }, layer) => Array.from({ length: heads }, (_, head) => [layer, head] as const));
  return all.filter(([layer, head]) => isAvailable(availableHeads, layer, head));
}

/** The nearest head in a direction, along the layers or within one; undefined at the end. */
export function findNextHead(
  current: { readonly layer: number; readonly head: number },
  heads: readonly HeadId[],
  layerStep: number,
  headStep: number,
): HeadId | undefined {
  const distanceTo = ([layer, head]: HeadId): readonly [number, number] => [layer - current.layer, head - current.head];
  const ahead = heads.filter((id) => {
    const [layers, within] = distanceTo(id);
    return layerStep === 0 ? layers === 0 && within * headStep > 0 : layers * layerStep > 0;
  });
  // One layer counts more than any number of heads.
  const rank = (id: HeadId): number => Math.abs(distanceTo(id)[0]) * 1e7 + Math.abs(distanceTo(id)[1]);
  return ahead.sort((one, other) => rank(one) - rank(other))[0];
}
