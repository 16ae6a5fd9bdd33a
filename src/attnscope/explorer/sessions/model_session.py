"""A model on stage: sentences that somebody types are read, and written on, while it is watched.

In: a model, its tokenizer, texts. Out: traces, and while the model writes, each new token with what it attends to.
Any thread may ask. The model works for one at a time; few may wait, and of those who want the same the newest.
Does not know: where texts come from and traces go, as the web. Memory: the model, its twin once that is asked for, and
the trace that is being made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import AttnScopeError, Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.explorer.sessions.presets import PRESETS
from attnscope.explorer.sessions.random_baseline import has_random_baseline, make_random_baseline
from attnscope.heads.effects import predicts_next_token
from attnscope.models import Decoder, Encoder, Sampling, Seq2Seq
from attnscope.models.sampling import Sampler
from attnscope.recording import Trace, read, record
from attnscope.recording.hooks.coverage import is_without_softmax
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import as_tokenizer

LIMIT = 512  # tokens of a text that is read while somebody waits
MAX_NEW_TOKENS = 64  # tokens that are written at once
CHUNK_SIZE = 128  # tokens that are read before it is asked again whether anybody still waits
WAITING = 2  # who may wait: for the model and for its twin
POLL_SECONDS = 0.05  # seconds after which those who wait look whether they have been cancelled


class BusyError(AttnScopeError, RuntimeError):
    """A model that works for one, and for which others wait already."""


class Superseded(Cancelled):
    """A wish that waited until somebody had a newer one of the same kind."""


class ModelSession:
    """A model that reads what is typed: any decoder or encoder that `attnscope.read` can read.

    `name` is what people call the model. Texts have at most `limit` tokens, and fewer where the model has room for
    fewer. `presets` are texts to begin with, `{"text", "note"}` each.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, *, limit: int = LIMIT) -> None:
        config = getattr(model, "config", None)
        if isinstance(model, Seq2Seq) or getattr(config, "is_encoder_decoder", False):
            raise UnsupportedError(
                f"ModelSession: {type(model).__name__} is an encoder-decoder model, which needs two texts; "
                "record it yourself and explore the trace"
            )
        if tokenizer is None:
            raise SettingError(f"ModelSession: {name} needs a tokenizer for texts that are typed, and there is none")
        if limit < 1:
            raise SettingError(f"ModelSession: the limit is at least one token, but {limit} was asked for")
        self.name, self.limit = name, min(limit, _room(model) or limit)
        self.generates, self.twins, self.ablates = (
            _can_generate(model),
            has_random_baseline(model),
            predicts_next_token(model),
        )
        self.presets = [{"text": preset.text, "note": preset.note} for preset in PRESETS]
        self._model, self._tokenizer = model, tokenizer
        self._codec = as_tokenizer(tokenizer)  # once: for a tokenizer of transformers it is a copy
        self._ends = _ends(model, tokenizer)
        self._turns = RequestQueue(WAITING)
        self._twin: nn.Module | None = None

    def run(self, text: str | Sequence[int], twin: bool = False, *, cancelled: CancelCheck | None = None) -> Trace:
        """What the model attends to in a text, or in ids; with `twin`, what it would have before it was trained.

        The twin is the same architecture with seeded random weights. It is made when it is first asked for, and then
        takes as much memory as the model itself. Raises `BusyError` if too many wait, `Superseded` if a newer text came
        while this one waited, and `Cancelled` once `cancelled` says True; it is asked before and between pieces.
        """
        ids, asked = self._ids(text), cancelled or never_cancelled

        def tell(*_: int) -> None:
            if asked():
                raise Cancelled(f"{self.name} was reading a text that is no longer wanted")

        with self._turns.turn("twin" if twin else "run", asked):
            model = self._untrained() if twin else self._model
            return read(model, ids, self._codec, chunk_size=CHUNK_SIZE, progress=tell)

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
        """A text written on by at most `count` tokens: events, as they happen.

        First `{"prompt": [texts of its tokens]}`. Then for each new token `{"token": its text, "position": its place,
        "row": [weights]}`: the row is what this token attends to in that head of that layer of the trace as the model
        reads it, one weight for each token up to itself. Last `{"done": True, "text": all of it, "trace": the Trace}`,
        whose rows are those that were told. Writing ends before a token that ends texts, and at the limit.

        The model runs in a thread of its own, so that events may be taken in any. It ends with the last event, or when
        the iterator is closed. Settings are checked at once; what can only be known from the model, as `BusyError`, is
        raised in place of the first event.
        """
        if not self.generates:
            raise UnsupportedError(f"{self.name} reads texts, but does not write them; choose a decoder for that")
        if not 1 <= count <= MAX_NEW_TOKENS:
            raise SettingError(f"continued: writes 1 to {MAX_NEW_TOKENS} tokens, but {count} were asked for")
        wish = GenerationRequest(self._ids(text), count, Sampling(temperature=temperature, seed=seed), layer, head)
        return _stream_from_thread(lambda tell, gone: self._write(wish, tell, gone), cancelled or never_cancelled)

    @contextmanager
    def acquire(self, kind: str, cancelled: CancelCheck) -> Iterator[nn.Module]:
        """The model for a while, for one of a kind of wishes; raises as `run` does."""
        with self._turns.turn(kind, cancelled):
            yield self._model

    def texts(self, ids: list[int]) -> list[str]:
        """The texts of tokens."""
        return self._codec.texts(ids)

    def _write(self, wish: GenerationRequest, tell: Callable[[dict[str, Any]], None], gone: CancelCheck) -> None:
        ids = list(wish.ids)
        with self._turns.turn("continued", gone):
            with torch.no_grad(), record(self._model, self._codec) as trace:
                writer, sampler = _CachedDecoder(self._model, gone), Sampler(wish.sampling, rows=1)
                scores = writer.next_logits(ids)
                _last_row(trace, wish)  # refuses a head that is not there before anything is told
                tell({"prompt": self._codec.texts(ids)})
                for _ in range(min(wish.count, self.limit - len(ids))):
                    token = int(sampler.choose(scores[:, : getattr(self._codec, "vocab_size", None)]))
                    if token in self._ends:
                        break
                    scores = writer.next_logits([token])
                    word, ids = self._codec.texts([token])[0], [*ids, token]
                    tell({"token": word, "position": len(ids) - 1, "row": _last_row(trace, wish)})
            for one in trace.layers.values():
                if isinstance(one, Layer):
                    one.joined()  # now, and not while two threads look at it
        tell({"done": True, "text": self._codec.decode(ids, special=False), "trace": trace})

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        ids = list(self._tokenizer.encode(text) if isinstance(text, str) else text)
        if not ids:
            raise SettingError(f"{self.name} has nothing to read; type a word at least")
        if len(ids) > self.limit:
            raise SettingError(
                f"this text has {len(ids):,} tokens, and {self.name} reads at most {self.limit:,} of them here; take a "
                "shorter one, or record it with attnscope.read and explore the trace"
            )
        return ids

    def _untrained(self) -> nn.Module:
        if self._twin is None:  # whoever has the turn is alone here
            self._twin = make_random_baseline(self._model)
        return self._twin


@dataclass(frozen=True)
class GenerationRequest:
    """What is to be written on, how, and the head that is watched meanwhile."""

    ids: list[int]
    count: int
    sampling: Sampling
    layer: int
    head: int


@dataclass(eq=False)
class _Ticket:
    """Somebody who waits."""

    kind: str
    superseded: bool = False


class RequestQueue:
    """One at a time, in the order in which they came. Few may wait, and of each kind the newest alone."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._changed = Condition()
        self._waiting: list[_Ticket] = []
        self._taken = False

    @contextmanager
    def turn(self, kind: str, cancelled: CancelCheck) -> Iterator[None]:
        """Wait for the turn, and have it for a while; raises BusyError, Superseded or Cancelled instead."""
        with self._changed:
            self._wait(self._new_ticket(kind), cancelled)
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def _new_ticket(self, kind: str) -> _Ticket:
        for other in self._waiting:
            other.superseded = other.kind == kind
        self._waiting = [other for other in self._waiting if not other.superseded]
        self._changed.notify_all()
        if len(self._waiting) >= self._room:
            raise BusyError(f"the model is busy, and {len(self._waiting)} wait for it already; try again in a moment")
        ticket = _Ticket(kind)
        self._waiting.append(ticket)
        return ticket

    def _wait(self, ticket: _Ticket, cancelled: CancelCheck) -> None:
        try:
            while True:
                if ticket.superseded:
                    raise Superseded("a newer text came while this one waited for the model")
                if cancelled():
                    raise Cancelled("a text was no longer wanted when its turn came")
                if not self._taken and self._waiting[0] is ticket:
                    return
                self._changed.wait(POLL_SECONDS)
        finally:
            if not ticket.superseded:
                self._waiting.remove(ticket)


class _CachedDecoder:
    """A decoder in the middle of a text: tokens in, scores of the next one out; what it has read is in a cache."""

    def __init__(self, model: nn.Module, gone: CancelCheck) -> None:
        self._model, self._gone = model, gone
        self._device = next(model.parameters()).device
        self._cache: Any = model.new_cache() if isinstance(model, Decoder) else None
        known = inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def next_logits(self, ids: list[int]) -> Tensor:
        """Read these tokens: (1, vocabulary)."""
        *others, last = [ids[start : start + CHUNK_SIZE] for start in range(0, len(ids), CHUNK_SIZE)]
        for piece in others:
            self._read(piece)
        return self._read(last)

    def _read(self, ids: list[int]) -> Tensor:
        if self._gone():
            raise Cancelled("a text was being written on that is no longer wanted")
        tokens = torch.tensor([ids], device=self._device)
        if isinstance(self._model, Decoder):
            return self._model.logits(self._model.features(tokens, cache=self._cache)[:, -1])
        result = self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **self._options)
        self._cache = result.past_key_values
        return result.logits[:, -1]


def _last_row(trace: Trace, wish: GenerationRequest) -> list[float]:
    """What the token that was read last attends to, a weight for each token of the text."""
    if not 0 <= wish.layer < len(trace):
        raise SettingError(f"continued: layer {wish.layer} was asked for; there are 0 to {len(trace) - 1}")
    layer = trace.layer(wish.layer)
    if not 0 <= wish.head < layer.shape[1]:
        raise SettingError(f"continued: head {wish.head} was asked for; {layer.name} has 0 to {layer.shape[1] - 1}")
    row = layer.matrix().batch(0).head(wish.head)[-1].tolist()
    forgotten = layer.columns.start if isinstance(layer, Layer) else 0  # by a cache that keeps a window
    return [0.0] * forgotten + row


def _stream_from_thread(
    work: Callable[[Callable[[dict[str, Any]], None], CancelCheck], None], cancelled: CancelCheck
) -> Generator[dict[str, Any], None, None]:
    """The events that `work` tells, while it runs in a thread which ends with this iterator.

    Recording, and torch without gradients, belong to a thread; whoever takes the events may come from another each
    time, as in the pools of web servers.
    """
    events: SimpleQueue[dict[str, Any] | BaseException | None] = SimpleQueue()
    closed = Event()

    def run() -> None:
        try:
            work(events.put, lambda: closed.is_set() or cancelled())
            events.put(None)
        except BaseException as error:
            events.put(error)  # it is raised again where the events are taken

    worker = Thread(target=run, name="attnscope-continued", daemon=True)
    worker.start()
    try:
        while (event := events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        closed.set()
        worker.join()


def _room(model: nn.Module) -> int | None:
    """The context length of a model, if its config has one."""
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)


def _can_generate(model: nn.Module) -> bool:
    """Whether a model writes with a cache that the recorder can follow."""
    if isinstance(model, Decoder):
        return True
    if isinstance(model, Encoder) or not getattr(model, "can_generate", lambda: False)():
        return False
    return not any(map(is_without_softmax, model.modules()))  # their caches are of other kinds


def _ends(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """All ids that end a text, as far as anything says so."""
    told = [getattr(getattr(model, "generation_config", None), "eos_token_id", None)]
    told += [getattr(tokenizer, "eos_token_id", None)]
    listed = [one if isinstance(one, list | tuple) else [one] for one in told if one is not None]
    return frozenset(getattr(tokenizer, "eos", ())) | {number for ids in listed for number in ids}
