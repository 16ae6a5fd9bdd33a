"""The observers and interventions of this thread: what the hooks call when a model computes attention.

Each thread has its own, so that recording a model in one thread does not affect the same model in another.
Does not know: models, calls, how attention is intercepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn

from attnscope.recording.call import Call
from attnscope.recording.hooks.verification import ReferenceWeights


class Observer(Protocol):
    """A callback for each attention call of the modules that it owns."""

    needs_lse: bool
    """Whether `attend` may compute the calls, because it returns their lse; otherwise the model's own kernel does."""

    def owns(self, module: nn.Module) -> bool: ...

    def on_attention(self, module: nn.Module, call: Call, reference: ReferenceWeights) -> None: ...


class Intervention(Protocol):
    """Replaces head outputs of some modules."""

    def owns(self, module: nn.Module) -> bool:
        """Whether a module belongs to the model."""
        ...

    def targets(self, module: nn.Module) -> bool:
        """Whether head outputs of this module are replaced."""
        ...

    def apply(self, module: nn.Module, heads: Tensor, keys: int, read_call: Callable[[], Call]) -> Tensor:
        """The replacement of the head outputs (batch, heads, queries, dim), for the output projection.

        `keys` is the number of keys, and `read_call` returns the call that computed the outputs.
        """
        ...


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())
_interventions: ContextVar[tuple[Intervention, ...]] = ContextVar("interventions", default=())
_suppressed: ContextVar[bool] = ContextVar("suppressed", default=False)


def current_observers() -> tuple[Observer, ...]:
    """The observers of this thread, the outermost first."""
    return _observers.get()


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Register an observer in this thread."""
    _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:  # not a reset: records may end in any order
        _observers.set(tuple(other for other in _observers.get() if other is not observer))


def current_interventions() -> tuple[Intervention, ...]:
    """The interventions of this thread, the outermost first."""
    return _interventions.get()


@contextmanager
def intervene(intervention: Intervention) -> Iterator[None]:
    """Register an intervention in this thread."""
    _interventions.set((*_interventions.get(), intervention))
    try:
        yield
    finally:
        _interventions.set(tuple(other for other in _interventions.get() if other is not intervention))


class suppress_recording:  # noqa: N801 - a context manager; a generator takes three times as long
    """Compute attention that has been reported, without reporting its inner calls."""

    def __enter__(self) -> None:
        self._token = _suppressed.set(True)

    def __exit__(self, *_: object) -> None:
        _suppressed.reset(self._token)


def is_suppressed() -> bool:
    """Whether the attention that is being computed has been reported already."""
    return _suppressed.get()
