"""Who listens in this thread, and who changes what heads say: all that the places where attention is seen know of them.

Each thread has its own, so that recording a model in one thread leaves the same model alone in another.
Does not know: models, calls, how either is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn

from attnscope.recording.call import Call
from attnscope.recording.watch.evidence import Evidence


class Listener(Protocol):
    """Somebody who wants to know of the attention of some modules."""

    def wants(self, module: nn.Module) -> bool: ...

    def hear(self, module: nn.Module, call: Call, evidence: Evidence) -> None: ...


class Changer(Protocol):
    """Somebody who hands on something else than what the heads of some modules say."""

    def wants(self, module: nn.Module) -> bool:
        """Whether a module is one of the model."""
        ...

    def concerns(self, module: nn.Module) -> bool:
        """Whether the heads of this module are to be changed; others are left to the model's own code."""
        ...

    def change(self, module: nn.Module, heads: Tensor, keys: int) -> Tensor:
        """What goes into the output projection in the place of heads (batch, head, query, dim)."""
        ...


_current: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_changers: ContextVar[tuple[Changer, ...]] = ContextVar("changers", default=())
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


def changers() -> tuple[Changer, ...]:
    """Those of this thread, the outermost first."""
    return _changers.get()


@contextmanager
def changing(changer: Changer) -> Iterator[None]:
    """Change in this thread for a while."""
    _changers.set((*_changers.get(), changer))
    try:
        yield
    finally:
        _changers.set(tuple(other for other in _changers.get() if other is not changer))


def calling_module(listener: Listener | Changer) -> nn.Module | None:
    """The innermost module that a listener wants on the way to this call."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, nn.Module) and listener.wants(found):
            return found
        frame = frame.f_back
    return None


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
