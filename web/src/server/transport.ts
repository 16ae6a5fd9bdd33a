// How the explorer asks for things. It knows only this interface, so that a notebook or a file on disk can answer instead of HTTP.

export interface Transport {
  /** A JSON answer. The shape is the caller's claim: the server is ours. */
  json<T>(path: string, signal?: AbortSignal): Promise<T>;
  /** A binary answer; null where the server says there is nothing (204). */
  bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null>;
  post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T>;
  /** One JSON value a line, each as soon as it arrives. */
  stream<T>(path: string, body: unknown, signal?: AbortSignal): AsyncIterable<T>;
  /** Where only some things can ever be answered, as in a saved page: whether this is one of them. */
  hasResponse?(path: string): boolean;
}

/** The server answered, and refused. `message` is the server's sentence for people. */
export class ResponseError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
    this.name = "Refused";
  }
}

/** True for the error of a request that we ourselves gave up. */
export function isAbortError(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
