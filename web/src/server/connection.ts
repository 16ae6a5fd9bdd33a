/**
 * A transport that reports when the server stops responding.
 *
 * Browsers report this only through the type of the error, which is checked here alone.
 */

import { isAbortError, type Transport } from "./transport";

/** `closeSignal` cancels requests that have no signal of their own. */
export function watchConnection(
  transport: Transport,
  onLost: () => void,
  onAnswer: () => void,
  closeSignal?: AbortSignal,
): Transport {
  const handleError = (error: unknown): never => {
    if (isConnectionError(error)) onLost();
    throw error;
  };
  const handleAnswer = <Answer>(answer: Answer): Answer => {
    onAnswer();
    return answer;
  };
  return {
    json: <Answer>(path: string, signal = closeSignal) => transport.json<Answer>(path, signal).then(handleAnswer, handleError),
    bytes: (path, signal = closeSignal) => transport.bytes(path, signal).then(handleAnswer, handleError),
    post: <Answer>(path: string, body: unknown, signal = closeSignal) =>
      transport.post<Answer>(path, body, signal).then(handleAnswer, handleError),
    async *stream<Answer>(path: string, body: unknown, signal = closeSignal) {
      try {
        yield* transport.stream<Answer>(path, body, signal);
      } catch (error) {
        handleError(error);
      }
    },
    ...(transport.hasResponse && { hasResponse: transport.hasResponse }),
  };
}

/** fetch throws a TypeError when there was no response; an error response is a ResponseError. */
export function isConnectionError(error: unknown): boolean {
  return error instanceof TypeError && !isAbortError(error);
}
