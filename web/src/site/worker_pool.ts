// Web Workers that compute blocks of attention, so that the page stays responsive.
//
// In: jobs. Out: their results. The newest job is computed first: older ones have most likely left the view.
import type { Block, TilePlace } from "./attention";

export interface Job {
  readonly block: Block;
  /** null for the weights of the block. */
  readonly tile: TilePlace | null;
}

export type JobResult = { readonly body: ArrayBuffer | null } | { readonly error: string };

const MAX_WORKERS = 4;

interface WaitingJob {
  readonly job: Job;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (body: ArrayBuffer | null) => void;
  readonly reject: (error: unknown) => void;
}

export class WorkerPool {
  readonly #idle: Worker[] = [];
  readonly #waiting: WaitingJob[] = [];
  #started = 0;

  constructor(private readonly createWorker: () => Worker) {}

  /** The result of a job, which is dropped when it was cancelled before it started. */
  run(job: Job, signal?: AbortSignal): Promise<ArrayBuffer | null> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ job, signal, resolve, reject });
      this.#next();
    });
  }

  #next(): void {
    while (this.#waiting.length > 0) {
      const worker = this.#idle.pop() ?? this.#start();
      if (!worker) return;
      this.#compute(worker, this.#waiting.pop()!);
    }
  }

  #start(): Worker | undefined {
    if (this.#started >= Math.min(MAX_WORKERS, navigator.hardwareConcurrency || 1)) return undefined;
    this.#started++;
    return this.createWorker();
  }

  #compute(worker: Worker, { job, signal, resolve, reject }: WaitingJob): void {
    if (signal?.aborted) {
      this.#idle.push(worker);
      return reject(signal.reason);
    }
    const finish = (): void => {
      worker.onmessage = worker.onerror = null;
      this.#idle.push(worker);
      this.#next();
    };
    worker.onmessage = ({ data }: MessageEvent<{ result: JobResult }>) => {
      if ("error" in data.result) reject(new Error(data.result.error));
      else resolve(data.result.body);
      finish();
    };
    worker.onerror = (event) => {
      reject(new Error(event.message || "The worker that computes attention could not be started."));
      finish();
    };
    worker.postMessage({ job });
  }
}

/** A worker whose script stands beside the page's. */
export function createPageWorker(): Worker {
  const url = "site_worker.js";
  interface Policy {
    createScriptURL(url: string): string;
  }
  const { trustedTypes } = globalThis as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy } };
  policy ??= trustedTypes?.createPolicy("attnscope", { createScriptURL: (one) => one });
  return new Worker(policy ? policy.createScriptURL(url) : url);
}

let policy: { createScriptURL(url: string): string } | undefined;
