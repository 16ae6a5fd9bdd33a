"""`no_network`: code that may not open connections, whichever library it calls.

In: why it may not. Out: a context in which connecting raises a `CheckpointError`. Only the thread that entered the
context is affected; others keep their connections. Does not know: who would connect. Memory: O(1).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from threading import Lock

from attnscope.errors import CheckpointError

EVENTS = frozenset(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"))
"""What Python's audit hooks call the ways to another machine."""

LOCAL = getattr(socket, "AF_UNIX", None)
"""The family of sockets between processes of this machine, which stay allowed."""

REASON: ContextVar[str | None] = ContextVar("REASON", default=None)
"""Why this thread may not connect, or None if it may."""

LOCK = Lock()


@contextmanager
def no_network(reason: str) -> Iterator[None]:
    """Raise a CheckpointError for connections that this thread opens.

    Args:
        reason: The beginning of the message.

    >>> with no_network("example.json names another place"):
    ...     socket.create_connection(("localhost", 9))
    Traceback (most recent call last):
    attnscope.errors.CheckpointError: example.json names another place, but nothing is fetched for it
    """
    with LOCK:
        _add_hook()
    token = REASON.set(reason)
    try:
        yield
    finally:
        REASON.reset(token)


@cache
def _add_hook() -> None:
    """Add the hook once; Python has no way to remove one, and calls it until after the names of this file are gone."""
    sys.addaudithook(partial(_deny, EVENTS, REASON))


def _deny(events: frozenset[str], current: ContextVar[str | None], event: str, arguments: tuple[object, ...]) -> None:
    if event not in events or (reason := current.get()) is None:
        return
    if arguments and isinstance(arguments[0], socket.socket) and arguments[0].family == LOCAL:
        return
    raise CheckpointError(f"{reason}, but nothing is fetched for it")
