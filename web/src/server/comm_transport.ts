// Transport over the comm between a widget and its kernel.
//
// In: the widget's model, which all views of a widget share, in all tabs. Out: a transport; what the kernel sends are the server's bytes.
// Each question has a number that nobody else has, and whatever carries another number is not for us.
// Memory: the questions that wait. When `signal` is aborted they end, and the model is let go of.
import { answeredBy } from "./http_transport";
import type { Transport } from "./transport";

/** The part of anywidget's model this needs; tests give their own. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, listener: (...values: never[]) => void): void;
  off(name: string, listener: (...values: never[]) => void): void;
}

export interface Message {
  readonly id: number;
  readonly status: number;
  readonly more: boolean;
}

export type Part = DataView<ArrayBuffer> | ArrayBuffer;

interface Question {
  heard(message: Message, part: Part | undefined): void;
  failed(error: Error): void;
}

const PATIENCE = 2000;
const NO_CONTENT = 204;

/** A number that no other view of any tab has for its message. No string: kernels keep those for ever. */
export function newNumber(): number {
  return Math.floor(Math.random() * 2 ** 52);
}

/** `waits` is told whether the kernel has been silent for a while although something was asked. */
export function createCommTransport(model: Model, signal: AbortSignal, waits: (waiting: boolean) => void): Transport {
  const questions = new Map<number, Question>();
  let timer: ReturnType<typeof setTimeout> | undefined;

  const rest = (): void => {
    clearTimeout(timer);
    timer = questions.size > 0 ? setTimeout(() => waits(true), PATIENCE) : undefined;
  };
  const heard = (message: Message, parts: Part[]): void => {
    const question = questions.get(message.id);
    if (!question) return;
    if (!message.more) questions.delete(message.id);
    rest();
    waits(false);
    question.heard(message, parts[0]);
  };
  // A kernel that restarts or dies: what was asked is not known there any more.
  const lost = (): void => {
    for (const { failed } of questions.values()) failed(new TypeError("The kernel has gone."));
    questions.clear();
    rest();
    waits(false);
  };
  model.on("msg:custom", heard);
  model.on("comm_live_update", lost);
  signal.addEventListener("abort", () => {
    model.off("msg:custom", heard);
    model.off("comm_live_update", lost);
    for (const { failed } of questions.values()) failed(signal.reason as Error);
    questions.clear();
    clearTimeout(timer);
  });

  return answeredBy((path, ends, body) => {
    const id = newNumber();
    return new Promise<Response>((resolve, reject) => {
      signal.throwIfAborted();
      ends?.throwIfAborted();
      let following: ReadableStreamDefaultController<Uint8Array> | undefined;
      const stop = (): void => {
        if (!questions.delete(id)) return;
        rest();
        if (questions.size === 0) waits(false);
        send(model, { cancel: id });
      };
      const abort = (): void => {
        stop();
        failed(ends?.reason as Error);
      };
      const done = (): void => ends?.removeEventListener("abort", abort);
      const failed = (error: Error): void => {
        done();
        reject(error);
        following?.error(error);
      };
      ends?.addEventListener("abort", abort);
      questions.set(id, {
        failed,
        heard({ status, more }, part) {
          if (!more) done();
          if (!more && !following) return resolve(new Response(status === NO_CONTENT ? null : (part ?? null), { status }));
          if (!following) {
            const body = new ReadableStream<Uint8Array>({
              start: (controller) => {
                following = controller;
              },
              cancel: stop,
            });
            resolve(new Response(body, { status }));
          }
          if (part && part.byteLength > 0) following?.enqueue(bytesOf(part));
          if (!more) following?.close();
        },
      });
      if (!timer) rest();
      if (!send(model, body === undefined ? { id, path } : { id, path, body })) lost();
    });
  });
}

/** Send a message; false where there is no kernel to send it to. */
export function send(model: Model, content: unknown): boolean {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}

function bytesOf(part: Part): Uint8Array {
  return part instanceof ArrayBuffer ? new Uint8Array(part) : new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
}
