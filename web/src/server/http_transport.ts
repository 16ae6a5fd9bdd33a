// Transport over HTTP to the server that served this page.
import { openAccess } from "./access";
import { ResponseError, type Transport } from "./transport";

/** Without cookies, which other servers of this host can set: too many of them would fail every request. */
function createRequest(token: string | null, signal: AbortSignal | undefined, body?: unknown): RequestInit {
  const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` };
  const request: RequestInit = { credentials: "omit", headers };
  if (signal) request.signal = signal;
  if (body !== undefined) {
    request.method = "POST";
    headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  return request;
}

async function readError(answer: Response): Promise<ResponseError> {
  let message = `The server answered ${answer.status}.`;
  try {
    const body: unknown = await answer.json();
    if (typeof body === "object" && body !== null && "error" in body && typeof body.error === "string") message = body.error;
  } catch {
    // Not JSON: only the status is known.
  }
  return new ResponseError(message, answer.status);
}

async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const parts = rest.split("\n");
      rest = done ? "" : (parts.pop() ?? "");
      for (const part of parts) if (part.trim() !== "") yield part;
      if (done) return;
    }
  } finally {
    // Leaving early cancels the response.
    await reader.cancel().catch(() => undefined);
  }
}

/** A transport over a function like fetch. */
export function createTransport(send: (path: string, signal?: AbortSignal, body?: unknown) => Promise<Response>): Transport {
  async function fetchOk(path: string, signal?: AbortSignal, body?: unknown): Promise<Response> {
    const answer = await send(path, signal, body);
    if (!answer.ok) throw await readError(answer);
    return answer;
  }
  return {
    async json<T>(path: string, signal?: AbortSignal): Promise<T> {
      return (await (await fetchOk(path, signal)).json()) as T;
    },
    async bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null> {
      const answer = await fetchOk(path, signal);
      return answer.status === 204 ? null : answer.arrayBuffer();
    },
    async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
      return (await (await fetchOk(path, signal, body)).json()) as T;
    },
    async *stream<T>(path: string, body: unknown, signal?: AbortSignal): AsyncGenerator<T> {
      const answer = await fetchOk(path, signal, body);
      if (answer.body === null) return;
      for await (const line of readLines(answer.body)) yield JSON.parse(line) as T;
    },
  };
}

export function createHttpTransport(base = "api/1/"): Transport {
  const getToken = openAccess(window, async (given) => {
    const answer = await fetch(`${base}access`, createRequest(null, undefined, { token: given }));
    if (!answer.ok) throw await readError(answer);
    return ((await answer.json()) as { token: string }).token;
  });
  return createTransport(async (path, signal, body) => fetch(base + path, createRequest(await getToken(), signal, body)));
}
