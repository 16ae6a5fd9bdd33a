"""What the model predicts at each token of a trace: surprise, rank, and the most likely next tokens.

In: a trace of the session's model. Out: numbers for JSON, as far as they are known; they are computed in the
background, a chunk at a time. The hidden states of texts that the session has run are kept, so that only the logits
have to be computed, those that were requested last first; other texts are run again from their beginning with a KV
cache. Does not know: HTTP.
Memory: the logits of one chunk, hidden states or a KV cache until all is known, then O(n).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.atlas.atlas import FOREGROUND
from attnscope.atlas.background import Job
from attnscope.errors import AttnScopeError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.library.trace_scores import WORKER
from attnscope.explorer.sessions.model_check import is_model_of
from attnscope.explorer.sessions.model_session import BusyError, ModelSession
from attnscope.recording import Trace
from attnscope.recording.chunks import run_in_chunks

CHUNK_SIZE = 128  # tokens whose logits are in memory at once
NUM_NEXT = 5
BUSY_SECONDS = 0.2  # before the model is requested again
NO_MODEL = "No model is loaded, so there are no predictions. Start with: attnscope look MODEL"


class TracePredictions:
    """The predictions for one trace, which a background job computes.

    Args:
        session: The session.
        trace: A trace of its model.

    Raises:
        UnsupportedError: The model does not predict the next token, or the trace has no token ids.
    """

    def __init__(self, session: ModelSession, trace: Trace) -> None:
        ids = trace.ids(0)[1]
        if not session.can_ablate:
            raise UnsupportedError(f"{session.name} does not predict the next token of a text.")
        if ids is None:
            raise UnsupportedError("This trace has no token ids, so its text cannot be predicted.")
        self._session, self._trace, self._ids = session, trace, ids[:1].cpu()
        count = ids.shape[1]
        self._surprise, self._rank = torch.zeros(count), torch.zeros(count, dtype=torch.int32)
        self._next, self._probs = torch.zeros(count, NUM_NEXT, dtype=torch.int32), torch.zeros(count, NUM_NEXT)
        self._known = torch.zeros(count, dtype=torch.bool)
        self._requested = 0, count
        self._chunks: Iterator[tuple[int, Tensor]] | None = None
        self._job = Job(self._step, FOREGROUND)

    def start(self) -> None:
        """Start the background work, or put it first."""
        WORKER.submit(self._job)

    def close(self) -> None:
        """Cancel the background work, and wait until it has stopped."""
        if not self._job.finished.is_set():
            WORKER.cancel(self._job)

    def report(self, start: int, stop: int) -> dict[str, Any]:
        """Report the predictions of tokens [start, stop); pending until all of them are known."""
        start, stop = min(start, len(self._surprise)), min(stop, len(self._surprise))
        first = max(0, start - 1)  # predicts the token at start
        self._requested = first, stop
        error = self._job.error
        if error is not None and not isinstance(error, AttnScopeError):
            raise error
        if error is not None or not self._known[first:stop].all():
            problem = None if error is None else " ".join(str(error).split())
            return {"pending": problem is None, "problem": problem, "tokens": []}
        texts = self._session.texts([int(token) for token in self._next[start:stop].flatten()])
        return {
            "pending": False,
            "problem": None,
            "tokens": [
                {
                    "surprise": float(self._surprise[at]) if at else None,
                    "rank": int(self._rank[at]) if at else None,
                    "next": [
                        [texts[(at - start) * NUM_NEXT + place], float(self._probs[at, place])]
                        for place in range(NUM_NEXT)
                    ],
                }
                for at in range(start, stop)
            ],
        }

    def _step(self, _report: Callable[[float], object], cancelled: CancelCheck) -> bool:
        """Predict one chunk, unless the model is busy."""
        try:
            with self._session.acquire(f"predict {id(self)}", cancelled) as model, torch.no_grad():
                if self._chunks is None:
                    self._chunks = self._logits(model)
                chunk = next(self._chunks, None)
                if chunk is not None:
                    self._add(*chunk)
        except BusyError:
            time.sleep(BUSY_SECONDS)
            return False
        if chunk is None:
            self._chunks = None
        return chunk is None

    def _logits(self, model: nn.Module) -> Iterator[tuple[int, Tensor]]:
        """Yield chunks, from kept hidden states or by running the text again.

        Yields:
            The first token of a chunk, and its logits (tokens, vocab_size).
        """
        kept = self._session.hidden_states.get(self._trace)
        if kept is not None:
            decoder, states = kept
            while (start := self._find_missing()) is not None:
                yield start, decoder.logits(states[start : start + CHUNK_SIZE])
            self._session.hidden_states.drop(self._trace)
            return
        if model.training:
            raise UnsupportedError(f"{self._session.name} is in training mode; call model.eval() first.")
        if not is_model_of(model, self._trace, self._ids):
            raise UnsupportedError(f"This trace is not of {self._session.name}, so its text cannot be predicted.")
        for chunk in run_in_chunks(model, self._ids, CHUNK_SIZE, logits=True):
            yield chunk.start, getattr(chunk.result, "logits", chunk.result)[0]

    def _find_missing(self) -> int | None:
        """The first token that has no prediction yet: of those that were requested last, then of all."""
        for first, stop in (self._requested, (0, len(self._known))):
            missing = (~self._known[first:stop]).nonzero()
            if len(missing):
                return first + int(missing[0])
        return None

    def _add(self, start: int, logits: Tensor) -> None:
        """Add the predictions of the tokens from `start` on, from their logits (tokens, vocab_size)."""
        stop = start + len(logits)
        logs = logits.float().log_softmax(-1).cpu()
        if not logs.isfinite().any(-1).all():
            raise UnsupportedError(f"{self._session.name} predicts NaN for this text.")
        top = logs[:, : self._session.vocab_size].topk(NUM_NEXT)  # a model may have more ids than its tokenizer
        self._next[start:stop], self._probs[start:stop] = top.indices.int(), top.values.exp()
        following = self._ids[0, start + 1 : stop + 1]
        own = logs[: len(following)].gather(1, following[:, None])
        self._surprise[start + 1 : stop + 1] = -own[:, 0]
        self._rank[start + 1 : stop + 1] = (logs[: len(following)] > own).sum(-1).int() + 1
        self._known[start:stop] = True
