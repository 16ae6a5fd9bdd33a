/**
 * Asking the server about one head: the newest question cancels the one before, and a few answers are kept.
 */

import { unanswered } from "./connection";
import type { Transport } from "./transport";

/** One question at a time of a kind: beginning a new one aborts the old one. */
export class Latest {
  private controller: AbortController | undefined;

  begin(): AbortSignal {
    this.stop();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  stop(): void {
    this.controller?.abort();
    this.controller = undefined;
  }
}

/** What went wrong, for people. */
export function told(error: unknown): string {
  if (unanswered(error)) return "The server does not answer.";
  return error instanceof Error && error.message !== "" ? error.message : "Something went wrong.";
}

/** The last answers, oldest forgotten first; a failure is not an answer. */
export class Answers {
  private readonly kept = new Map<string, unknown>();

  constructor(
    private readonly transport: Transport,
    private readonly limit = 64,
  ) {}

  json<Answer>(path: string, signal: AbortSignal): Promise<Answer> {
    return this.ask(path, () => this.transport.json<Answer>(path, signal));
  }

  bytes(path: string, signal: AbortSignal): Promise<ArrayBuffer | null> {
    return this.ask(`bytes ${path}`, () => this.transport.bytes(path, signal));
  }

  forget(path: string): void {
    this.kept.delete(path);
  }

  private async ask<Answer>(name: string, make: () => Promise<Answer>): Promise<Answer> {
    if (this.kept.has(name)) {
      const answer = this.kept.get(name) as Answer;
      this.keep(name, answer);
      return answer;
    }
    const answer = await make();
    this.keep(name, answer);
    return answer;
  }

  private keep(name: string, answer: unknown): void {
    this.kept.delete(name);
    this.kept.set(name, answer);
    if (this.kept.size <= this.limit) return;
    const oldest = this.kept.keys().next();
    if (!oldest.done) this.kept.delete(oldest.value);
  }
}
