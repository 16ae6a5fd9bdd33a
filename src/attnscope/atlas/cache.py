"""A least-recently-used cache limited in bytes, in which concurrent requests compute a value once.

In: a key, and a function that computes its value. Out: the value.
Does not know: what the values are. Memory: the limit, and values being computed. Any thread may call every method.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from attnscope.errors import SettingError

Value = TypeVar("Value")


class ByteCache:
    """A thread-safe least-recently-used cache of at most `max_bytes`.

    >>> cache = ByteCache(10)
    >>> cache.get("a", lambda: b"12345678"), cache.get("a", lambda: b"not called")
    (b'12345678', b'12345678')
    >>> cache.get("b", lambda: b"1234"), cache.nbytes
    (b'1234', 4)
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise SettingError(f"ByteCache: expected max_bytes of at least 1, got {max_bytes}")
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._pending: dict[Hashable, Future[Any]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The size of all cached values in bytes."""
        return self._nbytes

    def __len__(self) -> int:
        """Return the number of cached values."""
        return len(self._entries)

    def get(self, key: Hashable, compute: Callable[[], Value], size: Callable[[Value], int] = len) -> Value:  # type: ignore[assignment]
        """Return the value of a key, and compute it if it is not cached.

        Args:
            key: Identifies the value.
            compute: Computes the value. If several threads request a key at once, one computes it and the others wait.
                Its exception reaches all of them, and is not cached.
            size: The size of a value in bytes. A value larger than `max_bytes` is not cached.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            own: Future[Any] = Future()
            pending = self._pending.setdefault(key, own)
        if pending is not own:
            return pending.result()
        try:
            value = compute()
            self._store(key, value, size(value))
        except BaseException as error:
            self._finish(key)
            own.set_exception(error)
            raise
        self._finish(key)
        own.set_result(value)
        return value

    def _store(self, key: Hashable, value: object, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.max_bytes:
                return
            while self._nbytes + nbytes > self.max_bytes:
                self._nbytes -= self._entries.popitem(last=False)[1][1]
            self._entries[key] = value, nbytes
            self._nbytes += nbytes

    def _finish(self, key: Hashable) -> None:
        with self._lock:
            del self._pending[key]
