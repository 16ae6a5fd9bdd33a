/** Hooks that load what a panel shows. */

import { useLayoutEffect, useState } from "preact/hooks";
import { LatestRequest } from "../server/requests";

export interface Response<Value> {
  /** The last value; null before there is one. */
  readonly value: Value | null;
  /** Whether the value belongs to an earlier request, while the new one is loading. */
  readonly isStale: boolean;
  /** Why there is no value. */
  readonly problem: string | null;
}

const POLL_MILLISECONDS = 2000;

/**
 * Load again whenever `name` changes, and cancel the request before; null loads nothing. With `isPending`, values are
 * shown and requested again until one is complete.
 */
export function useResponse<Value>(
  name: string | null,
  load: (signal: AbortSignal) => Promise<Value>,
  isPending: (value: Value) => boolean = () => false,
): Response<Value> {
  const [response, setResponse] = useState<{ of: string | null; value: Value | null; problem: string | null }>({
    of: null,
    value: null,
    problem: null,
  });
  // A layout effect: an effect would wait for a frame before the request is sent.
  useLayoutEffect(() => {
    if (name === null) return setResponse({ of: null, value: null, problem: null });
    const request = new LatestRequest();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const start = (): void =>
      void request.run(
        load,
        (value) => {
          setResponse({ of: name, value, problem: null });
          if (isPending(value)) timer = setTimeout(start, POLL_MILLISECONDS);
        },
        (problem) => setResponse({ of: name, value: null, problem }),
      );
    start();
    return () => {
      clearTimeout(timer);
      request.cancel();
    };
  }, [name]);
  const isStale = response.of !== name;
  return { value: name === null ? null : response.value, isStale, problem: isStale ? null : response.problem };
}
