// How the explorer sends requests: over HTTP, to a notebook's kernel, to a saved file, or to the archives of a site.

export interface Transport {
  /** A JSON response. Its shape is not checked: the server is ours. */
  json<T>(path: string, signal?: AbortSignal): Promise<T>;
  /** A binary response; null where it has no content (204). */
  bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null>;
  post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T>;
  /** One JSON value per line, each as soon as it arrives. */
  stream<T>(path: string, body: unknown, signal?: AbortSignal): AsyncIterable<T>;
  /** Whether a saved page stores this path; undefined for transports that can load any path. */
  hasResponse?(path: string): boolean;
}

/** An error response. `message` is the server's text for the reader. */
export class ResponseError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
    this.name = "Refused";
  }
}

/** Whether a request failed because it was cancelled. */
export function isAbortError(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
