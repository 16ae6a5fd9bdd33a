/**
 * A transport that notices when the server is gone, whoever was asking.
 *
 * A browser tells "nobody answered" only by the kind of error, so this is the one place that reads it.
 */

import { aborted, type Transport } from "./transport";

/** `closing` ends what was asked without a signal of its own. */
export function watched(
  transport: Transport,
  lost: () => void,
  answered: () => void,
  closing?: AbortSignal,
): Transport {
  const judged = (error: unknown): never => {
    if (unanswered(error)) lost();
    throw error;
  };
  const heard = <Answer>(answer: Answer): Answer => {
    answered();
    return answer;
  };
  return {
    json: <Answer>(path: string, signal = closing) => transport.json<Answer>(path, signal).then(heard, judged),
    bytes: (path, signal = closing) => transport.bytes(path, signal).then(heard, judged),
    post: <Answer>(path: string, body: unknown, signal = closing) =>
      transport.post<Answer>(path, body, signal).then(heard, judged),
    async *stream<Answer>(path: string, body: unknown, signal = closing) {
      try {
        yield* transport.stream<Answer>(path, body, signal);
      } catch (error) {
        judged(error);
      }
    },
    ...(transport.holds && { holds: transport.holds }),
  };
}

/** fetch throws a TypeError when there was no answer at all; an answer that refuses is another error. */
export function unanswered(error: unknown): boolean {
  return error instanceof TypeError && !aborted(error);
}
