"""Who is recording in this thread: the one thing that the places where attention is seen and the recorder share.

Each thread has listeners of its own, so that recording a model in one thread leaves the same model alone in another.
Does not know: models, calls, how either is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import nn

from sightline.record.call import Call
from sightline.record.watch.evidence import Evidence


class Listener(Protocol):
    """Somebody who wants to know of the attention of some modules."""

    def wants(self, module: nn.Module) -> bool: ...

    def hear(self, module: nn.Module, call: Call, evidence: Evidence) -> None: ...


_current: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_told: ContextVar[bool] = ContextVar("told", default=False)


def listeners() -> tuple[Listener, ...]:
    """Those of this thread, the outermost first."""
    return _current.get()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Listen in this thread for a while."""
    _current.set((*_current.get(), listener))
    try:
        yield
    finally:  # not a reset: records need not end in the order in which they began
        _current.set(tuple(other for other in _current.get() if other is not listener))


@contextmanager
def already_told() -> Iterator[None]:
    """Compute an attention that listeners have been told of, without its inner calls being told again."""
    token = _told.set(True)
    try:
        yield
    finally:
        _told.reset(token)


def is_told() -> bool:
    """Whether the attention that is being computed has been told of."""
    return _told.get()
