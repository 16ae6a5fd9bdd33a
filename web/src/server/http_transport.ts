// Transport over HTTP to the server that served this page.
import { Refused, type Transport } from "./transport";

const writing = { "content-type": "application/json", "x-attnscope": "1" };

function options(signal: AbortSignal | undefined, body?: unknown): RequestInit {
  const request: RequestInit = { credentials: "same-origin" };
  if (signal) request.signal = signal;
  if (body !== undefined) {
    request.method = "POST";
    request.headers = writing;
    request.body = JSON.stringify(body);
  }
  return request;
}

async function refusal(answer: Response): Promise<Refused> {
  let message = `The server answered ${answer.status}.`;
  try {
    const said: unknown = await answer.json();
    if (typeof said === "object" && said !== null && "error" in said && typeof said.error === "string") message = said.error;
  } catch {
    // Not JSON: the number has to do.
  }
  return new Refused(message, answer.status);
}

async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
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
    // Leaving early tells the server to stop.
    await reader.cancel().catch(() => undefined);
  }
}

/** A transport over anything that answers as fetch does. */
export function answeredBy(ask: (path: string, signal?: AbortSignal, body?: unknown) => Promise<Response>): Transport {
  async function heard(path: string, signal?: AbortSignal, body?: unknown): Promise<Response> {
    const answer = await ask(path, signal, body);
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
  return {
    async json<T>(path: string, signal?: AbortSignal): Promise<T> {
      return (await (await heard(path, signal)).json()) as T;
    },
    async bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer | null> {
      const answer = await heard(path, signal);
      return answer.status === 204 ? null : answer.arrayBuffer();
    },
    async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
      return (await (await heard(path, signal, body)).json()) as T;
    },
    async *stream<T>(path: string, body: unknown, signal?: AbortSignal): AsyncGenerator<T> {
      const answer = await heard(path, signal, body);
      if (answer.body === null) return;
      for await (const line of lines(answer.body)) yield JSON.parse(line) as T;
    },
  };
}

export function createHttpTransport(base = "api/1/"): Transport {
  return answeredBy((path, signal, body) => fetch(base + path, options(signal, body)));
}
