/** Requests of a panel: a newer request cancels the one before, and the last few responses are cached. */

import { LruCache } from "../lru_cache";
import { isConnectionError } from "./connection";
import { isAbortError, type Transport } from "./transport";

/** At most one request of a kind: starting a new one cancels the one before. */
export class LatestRequest {
  private controller: AbortController | undefined;

  start(): AbortSignal {
    this.cancel();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  cancel(): void {
    this.controller?.abort();
    this.controller = undefined;
  }

  /** Load, then show the result or the failure, unless a newer request has started or this one was cancelled. */
  async run<Result>(
    load: (signal: AbortSignal) => Promise<Result>,
    show: (result: Result) => void,
    showError: (message: string, error: unknown) => void,
  ): Promise<void> {
    const signal = this.start();
    try {
      const result = await load(signal);
      if (!signal.aborted) show(result);
    } catch (error) {
      if (!signal.aborted && !isAbortError(error)) showError(describeError(error), error);
    }
  }
}

/** What went wrong, as a sentence for the reader. */
export function describeError(error: unknown): string {
  if (isConnectionError(error)) return "The server does not answer.";
  return error instanceof Error && error.message !== "" ? error.message : "Something went wrong.";
}

/** The last responses; the oldest is dropped first, and failures are not kept. */
export class ResponseCache {
  private readonly entries: LruCache<string, NonNullable<unknown> | null>;

  constructor(
    private readonly transport: Transport,
    maxSize = 64,
  ) {
    this.entries = new LruCache(maxSize);
  }

  json<Answer extends NonNullable<unknown> | null>(path: string, signal: AbortSignal): Promise<Answer> {
    return this.getOrLoad(path, () => this.transport.json<Answer>(path, signal));
  }

  bytes(path: string, signal: AbortSignal): Promise<ArrayBuffer | null> {
    return this.getOrLoad(`bytes ${path}`, () => this.transport.bytes(path, signal));
  }

  forget(path: string): void {
    this.entries.delete(path);
  }

  private async getOrLoad<Answer extends NonNullable<unknown> | null>(name: string, load: () => Promise<Answer>): Promise<Answer> {
    const cached = this.entries.get(name);
    if (cached !== undefined) return cached as Answer;
    const answer = await load();
    this.entries.set(name, answer);
    return answer;
  }
}
