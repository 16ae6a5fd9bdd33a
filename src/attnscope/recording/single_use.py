"""Context managers that raise an error when they are entered a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

from attnscope.errors import SettingError

P = ParamSpec("P")
T = TypeVar("T")


class SingleUse(ContextDecorator, AbstractContextManager[T, None], Generic[T]):
    """A context manager that is made by a call; a decorator makes a new one for each call of what it decorates."""

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._name, self._make = name, make
        self._entered: AbstractContextManager[T] | None = None

    def __enter__(self) -> T:
        if self._entered is not None:
            raise SettingError(f"{self._name}: the result can be used in one with block; call {self._name}(...) again")
        self._entered = self._make()
        return self._entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        assert self._entered is not None
        self._entered.__exit__(*error)

    def _recreate_cm(self) -> SingleUse[T]:
        return SingleUse(self._name, self._make)


def single_use(function: Callable[P, Iterator[T]]) -> Callable[P, SingleUse[T]]:
    """As contextlib.contextmanager, for functions that do not suppress errors.

    >>> @single_use
    ... def count():
    ...     yield 1
    >>> with count() as number:
    ...     print(number)
    1
    """
    make = contextmanager(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> SingleUse[T]:
        return SingleUse(function.__name__, lambda: make(*args, **kwargs))

    return called
