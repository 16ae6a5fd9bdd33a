// Which heads link some tokens to others: one request, or for long texts one per layer, so that values appear as they are computed.
import { paths, type HeadLinks, type Meta, type TokenLink } from "./protocol";
import type { Transport } from "./transport";

/** The longest text whose layers are requested together. */
const MAX_TOKENS_AT_ONCE = 16_384;

/** Yields the values of some layers at a time; of single layers, those of layer `from` first. */
export async function* findHeads(transport: Transport, meta: Meta, link: TokenLink, signal: AbortSignal, from = 0): AsyncGenerator<HeadLinks> {
  const longest = Math.max(...meta.layers.map(({ keys }) => keys));
  const count = meta.layers.length;
  const step = longest > MAX_TOKENS_AT_ONCE ? 1 : count;
  for (let index = 0; index < count; index += step) {
    const first = step === 1 ? (from + index) % count : 0;
    if (!hasPositions(meta, link, first, first + step)) continue;
    yield await transport.json<HeadLinks>(paths.findHeads(meta.trace, link, step === 1 ? [first, first + 1] : undefined), signal);
  }
}

/** Whether one of the layers has the positions of a link; the server rejects a request that no layer can answer. */
function hasPositions({ layers }: Meta, { query, key }: TokenLink, first: number, stop: number): boolean {
  return layers.slice(first, stop).some(({ queries, keys }) => (query?.[1] ?? 0) <= queries && (key?.[1] ?? 0) <= keys);
}
