"""`ModelSession`: runs a loaded model on typed texts, and generates from them, for several clients.

In: a model, its tokenizer, texts. Out: traces; while generating, an event for each new token with its attention row.
Requests may come from any thread. The model serves one at a time; few may wait, and of each kind only the newest.
Does not know: HTTP. Memory: the model, its random-weight baseline once requested, the trace being recorded, and the
hidden states of traces until their predictions are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import AttnScopeError, Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.explorer.sessions.hidden_states import HiddenStates, collect_hidden_states
from attnscope.explorer.sessions.presets import list_presets
from attnscope.explorer.sessions.random_baseline import has_random_baseline, make_random_baseline
from attnscope.heads.effects import predicts_next_token
from attnscope.models import Decoder, Encoder, Sampling, Seq2Seq
from attnscope.models.sampling import Sampler
from attnscope.progress import Progress
from attnscope.recording import Trace, read, record
from attnscope.recording.hooks.coverage import is_without_softmax
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import as_tokenizer

MAX_TOKENS = 512  # of a text that is run while a client waits
MAX_NEW_TOKENS = 64
CHUNK_SIZE = 128  # tokens between two checks for cancellation
MAX_WAITING = 2  # requests in the queue: one for the model and one for its baseline
POLL_SECONDS = 0.05  # between two checks for cancellation in the queue


class BusyError(AttnScopeError, RuntimeError):
    """The model is running and its queue is full; retry later."""


class Superseded(Cancelled):
    """A newer request of the same kind replaced this one in the queue."""


class ModelSession:
    """A loaded model that runs texts: any decoder or encoder that `attnscope.read` supports.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        name: The name to display.
        max_tokens: The longest text, in tokens; less if the model has a shorter context length.

    Attributes:
        presets: Example texts, as `{"text", "note", "layer", "head"}`.
        can_generate: Whether the model can generate text while it is recorded.
        can_ablate: Whether the model predicts the next token, so that ablating heads has a measurable effect.
        has_baseline: Whether a randomly initialised copy can be created.
        note: What to say about the session; None for a trained model.
        hidden_states: Those of the texts that were run, from which predictions follow.

    Raises:
        UnsupportedError: The model is an encoder-decoder.
        SettingError: There is no tokenizer, or `max_tokens` is less than 1.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, *, max_tokens: int = MAX_TOKENS) -> None:
        config = getattr(model, "config", None)
        if isinstance(model, Seq2Seq) or getattr(config, "is_encoder_decoder", False):
            raise UnsupportedError(
                f"ModelSession: expected a decoder or an encoder, got the encoder-decoder {type(model).__name__}; "
                "record it yourself and explore the trace"
            )
        if tokenizer is None:
            raise SettingError(f"ModelSession: {name} needs a tokenizer to run typed texts, got None")
        if max_tokens < 1:
            raise SettingError(f"ModelSession: expected max_tokens of at least 1, got {max_tokens}")
        self.name, self.max_tokens = name, min(max_tokens, _context_length(model) or max_tokens)
        self.can_generate, self.can_ablate = _can_generate(model), predicts_next_token(model)
        self.has_baseline = has_random_baseline(model)
        self.presets = list_presets(model)
        self._model, self._tokenizer = model, tokenizer
        self._codec = as_tokenizer(tokenizer)  # once: for a tokenizer of transformers it is a copy
        self._eos_ids = _find_eos_ids(model, tokenizer)
        self._queue = RequestQueue(MAX_WAITING)
        self._baseline: nn.Module | None = None
        self.hidden_states = HiddenStates()
        self.note: str | None = None

    def read(self, text: str | Sequence[int] | Tensor, progress: Progress | bool = True) -> Trace:
        """Record a text of any length, before requests come."""
        return self._record(self._model, text, self._tokenizer, progress=progress)

    def run(self, text: str | Sequence[int], baseline: bool = False, *, cancelled: CancelCheck | None = None) -> Trace:
        """Run the model on a text and record its attention.

        Args:
            text: A text, or token ids.
            baseline: Run the randomly initialised copy instead. It is created on first use, from a fixed seed, and
                takes as much memory as the model.
            cancelled: Called before and between chunks; when it returns True, the run stops.

        Returns:
            The trace.

        Raises:
            BusyError: The queue is full.
            Superseded: A newer request replaced this one while it waited.
            Cancelled: `cancelled` returned True.
            SettingError: The text is empty or too long.
        """
        ids, is_cancelled = self._encode(text), cancelled or never_cancelled

        def check(*_: int) -> None:
            if is_cancelled():
                raise Cancelled(f"{self.name}: the run was cancelled")

        with self._queue.wait_turn("baseline" if baseline else "run", is_cancelled):
            model = self._get_baseline() if baseline else self._model
            return self._record(model, ids, self._codec, chunk_size=CHUNK_SIZE, values=True, progress=check)

    def generate(
        self,
        text: str,
        count: int,
        temperature: float,
        seed: int,
        layer: int,
        head: int,
        cancelled: CancelCheck | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        """Generate at most `count` tokens, and yield an event for each.

        The first event is `{"prompt": [token texts]}`. Each new token is `{"token": text, "position": index, "row":
        [weights]}`, where `row` holds its attention weights on all tokens so far, in the given head. The last event is
        `{"done": True, "text": whole text, "trace": Trace}`. Generation stops before an end-of-text token, and at
        `max_tokens`. The model runs in its own thread, which ends with the last event or when the generator is closed.

        Args:
            text: The prompt.
            count: The number of tokens, 1 to 64.
            temperature: The sampling temperature; 0 takes the most likely token.
            seed: The seed of sampling.
            layer: The layer of the head whose rows are yielded, counted in the trace.
            head: The head in that layer.
            cancelled: Called before each token; when it returns True, generation stops.

        Returns:
            A generator of events.

        Raises:
            UnsupportedError: The model cannot generate.
            SettingError: A setting is out of range. An unknown layer or head is raised in place of the first event.
            BusyError: The queue is full; raised in place of the first event, as is `Superseded`.
        """
        if not self.can_generate:
            raise UnsupportedError(f"{self.name} cannot generate text; expected a decoder")
        if not 1 <= count <= MAX_NEW_TOKENS:
            raise SettingError(f"generate: expected a count of 1 to {MAX_NEW_TOKENS} tokens, got {count}")
        request = GenerationRequest(
            self._encode(text), count, Sampling(temperature=temperature, seed=seed), layer, head
        )
        return _stream_from_thread(
            lambda emit, is_cancelled: self._generate(request, emit, is_cancelled), cancelled or never_cancelled
        )

    @contextmanager
    def acquire(self, kind: str, cancelled: CancelCheck) -> Iterator[nn.Module]:
        """Hold the model for a request of the given kind; raises as `run` does."""
        with self._queue.wait_turn(kind, cancelled):
            yield self._model

    @property
    def vocab_size(self) -> int | None:
        """The number of ids that the tokenizer can decode, if it is known."""
        return getattr(self._codec, "vocab_size", None)

    def texts(self, ids: list[int]) -> list[str]:
        """Decode each token id to its text."""
        return self._codec.texts(ids)

    def _generate(
        self, request: GenerationRequest, emit: Callable[[dict[str, Any]], None], cancelled: CancelCheck
    ) -> None:
        ids = list(request.ids)
        with self._queue.wait_turn("generate", cancelled):
            with torch.no_grad(), record(self._model, self._codec, values=True) as trace:
                decoder, sampler = _CachedDecoder(self._model, cancelled), Sampler(request.sampling, rows=1)
                logits = decoder.next_logits(ids)
                _last_row(trace, request)  # raises for an unknown head before the first event
                emit({"prompt": self._codec.texts(ids)})
                for _ in range(min(request.count, self.max_tokens - len(ids))):
                    token = int(sampler.choose(logits[:, : self.vocab_size]))
                    if token in self._eos_ids:
                        break
                    logits = decoder.next_logits([token])
                    word, ids = self._codec.texts([token])[0], [*ids, token]
                    emit({"token": word, "position": len(ids) - 1, "row": _last_row(trace, request)})
            for one in trace.layers.values():
                if isinstance(one, Layer):
                    one.merge_calls()  # here, because it is not safe in two threads
        emit({"done": True, "text": self._codec.decode(ids, skip_special_tokens=True), "trace": trace})

    def _encode(self, text: str | Sequence[int]) -> list[int]:
        ids = list(self._tokenizer.encode(text) if isinstance(text, str) else text)
        if not ids:
            raise SettingError(f"{self.name}: expected a text of at least one token, got none")
        if len(ids) > self.max_tokens:
            raise SettingError(
                f"{self.name}: expected at most {self.max_tokens:,} tokens, got {len(ids):,}; shorten the text, or "
                "record it with attnscope.read and explore the trace"
            )
        return ids

    def _record(self, model: nn.Module, text: str | Sequence[int] | Tensor, tokenizer: Any, **options: Any) -> Trace:
        """Record a text, and keep its hidden states for predictions."""
        with collect_hidden_states(model) as parts:
            trace = read(model, text, tokenizer, **options)
        self.hidden_states.keep(trace, model, parts)
        return trace

    def _get_baseline(self) -> nn.Module:
        if self._baseline is None:  # no lock: only one request runs at a time
            self._baseline = make_random_baseline(self._model)
        return self._baseline


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, how to sample, and the head whose rows are yielded."""

    ids: list[int]
    count: int
    sampling: Sampling
    layer: int
    head: int


@dataclass(eq=False)
class _Ticket:
    """A waiting request."""

    kind: str
    superseded: bool = False


class RequestQueue:
    """Runs requests one at a time, in order. Few may wait, and of each kind only the newest."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._changed = Condition()
        self._waiting: list[_Ticket] = []
        self._running = False

    @contextmanager
    def wait_turn(self, kind: str, cancelled: CancelCheck) -> Iterator[None]:
        """Wait for the requests before, and hold off those after; raises BusyError, Superseded or Cancelled."""
        with self._changed:
            self._wait(self._enqueue(kind), cancelled)
            self._running = True
        try:
            yield
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _enqueue(self, kind: str) -> _Ticket:
        for other in self._waiting:
            other.superseded = other.kind == kind
        self._waiting = [other for other in self._waiting if not other.superseded]
        self._changed.notify_all()
        if len(self._waiting) >= self._max_waiting:
            raise BusyError(f"the model is busy, and {len(self._waiting)} requests are waiting; retry in a moment")
        ticket = _Ticket(kind)
        self._waiting.append(ticket)
        return ticket

    def _wait(self, ticket: _Ticket, cancelled: CancelCheck) -> None:
        try:
            while True:
                if ticket.superseded:
                    raise Superseded("a newer request replaced this one in the queue")
                if cancelled():
                    raise Cancelled("the request was cancelled while it waited")
                if not self._running and self._waiting[0] is ticket:
                    return
                self._changed.wait(POLL_SECONDS)
        finally:
            if not ticket.superseded:
                self._waiting.remove(ticket)


class _CachedDecoder:
    """A decoder with its KV cache: token ids in, logits of the next token out."""

    def __init__(self, model: nn.Module, cancelled: CancelCheck) -> None:
        self._model, self._cancelled = model, cancelled
        self._device = next(model.parameters()).device
        self._cache: Any = model.new_cache() if isinstance(model, Decoder) else None
        parameters = inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def next_logits(self, ids: list[int]) -> Tensor:
        """Run the tokens in chunks and return the last logits, (1, vocab_size)."""
        *others, last = [ids[start : start + CHUNK_SIZE] for start in range(0, len(ids), CHUNK_SIZE)]
        for chunk in others:
            self._forward(chunk)
        return self._forward(last)

    def _forward(self, ids: list[int]) -> Tensor:
        if self._cancelled():
            raise Cancelled("generation was cancelled")
        input_ids = torch.tensor([ids], device=self._device)
        if isinstance(self._model, Decoder):
            return self._model.logits(self._model.features(input_ids, cache=self._cache)[:, -1])
        result = self._model(input_ids=input_ids, past_key_values=self._cache, use_cache=True, **self._options)
        self._cache = result.past_key_values
        return result.logits[:, -1]


def _last_row(trace: Trace, request: GenerationRequest) -> list[float]:
    """The attention weights of the last token, one for each token so far."""
    if not 0 <= request.layer < len(trace):
        raise SettingError(f"generate: expected a layer from 0 to {len(trace) - 1}, got {request.layer}")
    layer = trace.layer(request.layer)
    if not 0 <= request.head < layer.shape[1]:
        raise SettingError(f"generate: expected a head from 0 to {layer.shape[1] - 1}, got {request.head}")
    row = layer.matrix().batch(0).head(request.head)[-1].tolist()
    dropped = layer.columns.start if isinstance(layer, Layer) else 0  # by a sliding-window KV cache
    return [0.0] * dropped + row


def _stream_from_thread(
    work: Callable[[Callable[[dict[str, Any]], None], CancelCheck], None], cancelled: CancelCheck
) -> Generator[dict[str, Any], None, None]:
    """Yield the events that `work` emits in a thread, which ends with this generator.

    Recording and `torch.no_grad` are bound to a thread, while each event may be taken by another thread of a pool.
    """
    events: SimpleQueue[dict[str, Any] | BaseException | None] = SimpleQueue()
    closed = Event()

    def run() -> None:
        try:
            work(events.put, lambda: closed.is_set() or cancelled())
            events.put(None)
        except BaseException as error:
            events.put(error)  # raised again in the generator

    worker = Thread(target=run, name="attnscope-generate", daemon=True)
    worker.start()
    try:
        while (event := events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        closed.set()
        worker.join()


def _context_length(model: nn.Module) -> int | None:
    """The context length of a model, if its config has one."""
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)


def _can_generate(model: nn.Module) -> bool:
    """Whether the model generates with a KV cache that can be recorded."""
    if isinstance(model, Decoder):
        return True
    if isinstance(model, Encoder) or not getattr(model, "can_generate", lambda: False)():
        return False
    return not any(map(is_without_softmax, model.modules()))  # they have other caches


def _find_eos_ids(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """All end-of-text ids of the model and the tokenizer."""
    found = [getattr(getattr(model, "generation_config", None), "eos_token_id", None)]
    found += [getattr(tokenizer, name, None) for name in ("eos_token_id", "eos_token_ids")]
    listed = [one if isinstance(one, Collection) else [one] for one in found if one is not None]
    return frozenset(number for ids in listed for number in ids)
