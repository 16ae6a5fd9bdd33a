"""What was computed is kept up to a number of bytes, and is computed once however many ask at once.

In: a key, and a function that makes its value. Out: the value. What was used longest ago goes first.
Does not know: what the values are. Memory: the limit, and what is being made. Any thread may call every method.
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
    """Values by key, at most `limit` bytes of them.

    >>> cache = ByteCache(10)
    >>> cache.get("a", lambda: b"12345678"), cache.get("a", lambda: b"never asked")
    (b'12345678', b'12345678')
    >>> cache.get("b", lambda: b"1234"), cache.nbytes
    (b'1234', 4)
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise SettingError(f"ByteCache({limit}): the limit is a number of bytes above 0")
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._making: dict[Hashable, Future[Any]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self._nbytes

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int] = len) -> Value:  # type: ignore[assignment]
        """The value of a key, made now if it is not there.

        Threads that ask while another makes it wait for that one. What `make` raises reaches all of them and is not
        kept; a value larger than the limit is not kept either.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            mine: Future[Any] = Future()
            making = self._making.setdefault(key, mine)
        if making is not mine:
            return making.result()
        try:
            value = make()
            self._keep(key, value, size(value))
        except BaseException as error:
            self._finish(key)
            mine.set_exception(error)
            raise
        self._finish(key)
        mine.set_result(value)
        return value

    def _keep(self, key: Hashable, value: object, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.limit:
                return
            self._kept[key] = value, nbytes
            self._nbytes += nbytes
            while self._nbytes > self.limit:
                self._nbytes -= self._kept.popitem(last=False)[1][1]

    def _finish(self, key: Hashable) -> None:
        with self._lock:
            del self._making[key]
