/**
 * Asking the server about one head: the newest question cancels the one before, and a few answers are kept.
 */

import { isConnectionError } from "./connection";
import type { Transport } from "./transport";

/** One question at a time of a kind: beginning a new one aborts the old one. */
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
}

/** What went wrong, for people. */
export function describeError(error: unknown): string {
  if (isConnectionError(error)) return "The server does not answer.";
  return error instanceof Error && error.message !== "" ? error.message : "Something went wrong.";
}

/** The last answers, oldest forgotten first; a failure is not an answer. */
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
