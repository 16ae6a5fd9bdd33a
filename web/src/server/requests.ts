/** Requests of a panel: a newer request cancels the one before, and the last few responses are cached. */

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
  private readonly entries = new Map<string, unknown>();

  constructor(
    private readonly transport: Transport,
    private readonly limit = 64,
  ) {}

  json<Answer>(path: string, signal: AbortSignal): Promise<Answer> {
    return this.getOrLoad(path, () => this.transport.json<Answer>(path, signal));
  }

  bytes(path: string, signal: AbortSignal): Promise<ArrayBuffer | null> {
    return this.getOrLoad(`bytes ${path}`, () => this.transport.bytes(path, signal));
  }

  forget(path: string): void {
    this.entries.delete(path);
  }

  private async getOrLoad<Answer>(name: string, load: () => Promise<Answer>): Promise<Answer> {
    if (this.entries.has(name)) {
      const answer = this.entries.get(name) as Answer;
      this.store(name, answer);
      return answer;
    }
    const answer = await load();
    this.store(name, answer);
    return answer;
  }

  private store(name: string, answer: unknown): void {
    this.entries.delete(name);
    this.entries.set(name, answer);
    if (this.entries.size <= this.limit) return;
    const oldest = this.entries.keys().next();
    if (!oldest.done) this.entries.delete(oldest.value);
  }
}
