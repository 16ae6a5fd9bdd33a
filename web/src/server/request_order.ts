/**
 * Sends first what the map shows.
 *
 * A browser keeps six connections to a server. So until the first heatmap is drawn, only what it needs is sent, and
 * slow answers, which the server computes in the background, use two connections at most.
 */

import type { Transport } from "./transport";

const FOR_MAP = /^session$|\/(?:meta|opening)$|\/(?:preview|tokens|\d+\/\d+\/\d+)\?/;
const SLOW = /\/(?:heads|profile|scores)$|\/predictions\?|\/marginal\//;
const MAX_SLOW = 2;

export interface OrderedTransport extends Transport {
  /** The first heatmap is drawn: send what waits for it. */
  release(): void;
}

/** Until `release`, or for `holdMilliseconds`, only requests of the map are sent. */
export function orderRequests(transport: Transport, holdMilliseconds: number): OrderedTransport {
  const waiting: (() => void)[] = [];
  let running = 0;
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, holdMilliseconds);
    release = () => {
      clearTimeout(timer);
      resolve();
    };
  });

  const send = async <Answer>(path: string, signal: AbortSignal | undefined, request: () => Promise<Answer>): Promise<Answer> => {
    if (FOR_MAP.test(path)) return request();
    await released;
    if (!SLOW.test(path)) {
      signal?.throwIfAborted();
      return request();
    }
    while (running >= MAX_SLOW) await new Promise<void>((resolve) => waiting.push(resolve));
    running++;
    try {
      signal?.throwIfAborted();
      return await request();
    } finally {
      running--;
      waiting.shift()?.();
    }
  };

  return {
    json: (path, signal) => send(path, signal, () => transport.json(path, signal)),
    bytes: (path, signal) => send(path, signal, () => transport.bytes(path, signal)),
    post: (path, body, signal) => transport.post(path, body, signal),
    stream: (path, body, signal) => transport.stream(path, body, signal),
    ...(transport.hasResponse && { hasResponse: transport.hasResponse }),
    release: () => release(),
  };
}
