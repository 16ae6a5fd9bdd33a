// Transport over the comm between a widget and its kernel.
//
// In: the widget's model, which all views of a widget share, in all tabs. Out: a transport; the kernel sends the server's responses.
// Each request has a unique id; messages with other ids are ignored.
// Pending requests fail when `signal` is aborted.
import { createTransport } from "./http_transport";
import type { Transport } from "./transport";

/** The part of anywidget's model that this needs; tests pass their own. */
export interface WidgetModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, listener: (...values: never[]) => void): void;
  off(name: string, listener: (...values: never[]) => void): void;
}

export interface KernelMessage {
  readonly id: number;
  readonly status: number;
  readonly more: boolean;
}

export type MessageBuffer = DataView<ArrayBuffer> | ArrayBuffer;

interface PendingRequest {
  handleMessage(message: KernelMessage, part: MessageBuffer | undefined): void;
  fail(error: Error): void;
}

const SILENCE_MILLISECONDS = 2000;
const NO_CONTENT = 204;

/** A message id that is unique among all views and tabs. A number, since kernels intern strings for ever. */
export function createMessageId(): number {
  return Math.floor(Math.random() * 2 ** 52);
}

/**
 * `view` is the id of the view: the kernel cancels its requests when it is closed. `onWaiting` is called with true when the kernel does not
 * respond for a while, and with false when it does.
 */
export function createCommTransport(
  model: WidgetModel,
  view: number,
  signal: AbortSignal,
  onWaiting: (waiting: boolean) => void,
): Transport {
  const requests = new Map<number, PendingRequest>();
  let timer: ReturnType<typeof setTimeout> | undefined;

  const restartTimer = (): void => {
    clearTimeout(timer);
    timer = requests.size > 0 ? setTimeout(() => onWaiting(true), SILENCE_MILLISECONDS) : undefined;
  };
  const onMessage = (message: KernelMessage, parts: MessageBuffer[]): void => {
    const request = requests.get(message.id);
    if (!request) return;
    if (!message.more) requests.delete(message.id);
    restartTimer();
    onWaiting(false);
    request.handleMessage(message, parts[0]);
  };
  // A kernel that restarts or dies has lost the pending requests.
  const failAll = (): void => {
    for (const { fail } of requests.values()) fail(new TypeError("The kernel has gone."));
    requests.clear();
    restartTimer();
    onWaiting(false);
  };
  model.on("msg:custom", onMessage);
  model.on("comm_live_update", failAll);
  signal.addEventListener("abort", () => {
    model.off("msg:custom", onMessage);
    model.off("comm_live_update", failAll);
    for (const { fail } of requests.values()) fail(signal.reason as Error);
    requests.clear();
    clearTimeout(timer);
  });

  return createTransport((path, requestSignal, body) => {
    const id = createMessageId();
    return new Promise<Response>((resolve, reject) => {
      signal.throwIfAborted();
      requestSignal?.throwIfAborted();
      let streamController: ReadableStreamDefaultController<Uint8Array> | undefined;
      const stop = (): void => {
        if (!requests.delete(id)) return;
        restartTimer();
        if (requests.size === 0) onWaiting(false);
        sendMessage(model, { cancel: id });
      };
      const abort = (): void => {
        stop();
        fail(requestSignal?.reason as Error);
      };
      const removeListener = (): void => requestSignal?.removeEventListener("abort", abort);
      const fail = (error: Error): void => {
        removeListener();
        reject(error);
        streamController?.error(error);
      };
      requestSignal?.addEventListener("abort", abort);
      requests.set(id, {
        fail,
        handleMessage({ status, more }, part) {
          if (!more) removeListener();
          if (!more && !streamController) return resolve(new Response(status === NO_CONTENT ? null : (part ?? null), { status }));
          if (!streamController) {
            const body = new ReadableStream<Uint8Array>({
              start: (controller) => {
                streamController = controller;
              },
              cancel: stop,
            });
            resolve(new Response(body, { status }));
          }
          if (part && part.byteLength > 0) streamController?.enqueue(toBytes(part));
          if (!more) streamController?.close();
        },
      });
      if (!timer) restartTimer();
      if (!sendMessage(model, { id, path, from: view, ...(body !== undefined && { body }) })) failAll();
    });
  });
}

/** Send a message; false where there is no kernel to send it to. */
export function sendMessage(model: WidgetModel, content: unknown): boolean {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}

function toBytes(part: MessageBuffer): Uint8Array {
  return part instanceof ArrayBuffer ? new Uint8Array(part) : new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
}
