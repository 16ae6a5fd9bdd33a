"""`Fields`: a JSON object from an untrusted file, read field by field with the expected types and ranges.

In: a parsed object. Out: integers, numbers, strings, flags and lists that are valid, or an error that names the field.
Every field must be read or declared irrelevant; `finish` rejects the others.
Does not know: what a field means. Memory: O(fields).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from reprlib import Repr
from typing import Any, TypeVar

from attnscope.errors import AttnScopeError, CheckpointError

Choice = TypeVar("Choice")

MAX_INTEGER = 2**53
"""Integers beyond this are not exact in every JSON reader, and their products have more digits than Python prints."""

MAX_ITEMS = 1_000_000
MAX_CHARACTERS = 4_000

SHORT = Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 100


class Required:
    """The default of a field that has none."""


REQUIRED = Required()


class Fields:
    """A JSON object whose fields are read one by one; `finish` rejects fields that nothing has read.

    Args:
        found: The parsed object.
        source: The file, and the place in it, for error messages.
        ignore: Fields to treat as missing, by their path (`"rope_scaling.type"`).
        path: Where an inner object is, ending in a dot.
        error: The class of errors to raise.
        advice: What to do about an invalid field; without it, to pass `ignore`.

    Raises:
        AttnScopeError: `error`, if `found` is not an object.

    >>> fields = Fields({"hidden_size": 64, "bos_token_id": 1}, source="config.json")
    >>> fields.size("hidden_size")
    64
    >>> fields.changes_nothing("bos_token_id")
    >>> fields.finish()
    """

    def __init__(
        self,
        found: object,
        *,
        source: str,
        ignore: Collection[str] = (),
        path: str = "",
        error: type[AttnScopeError] = CheckpointError,
        advice: str | None = None,
    ) -> None:
        self.source, self.path, self.ignore = source, path, tuple(ignore)
        self._error, self._advice = error, advice
        if not isinstance(found, dict):
            raise error(
                f"{source}: expected an object, got {short_repr(found)}{'' if advice is None else f'; {advice}'}"
            )
        self.found: dict[str, Any] = {name: value for name, value in found.items() if path + name not in self.ignore}
        self._unread = dict.fromkeys(self.found)

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def take(self, name: str, default: object = REQUIRED) -> Any:
        """Read a field of any type, or return its default."""
        self._unread.pop(name, None)
        value = self.found.get(name, default)
        if isinstance(value, Required):
            advice = "this kind of model needs it" if self._advice is None else self._advice
            raise self._error(f"{self.source} has no field {self.path + name!r}; {advice}")
        return value

    def is_null(self, name: str) -> bool:
        """Whether a field is there and null, in which case it counts as read."""
        null = name in self.found and self.found[name] is None
        if null:
            self._unread.pop(name, None)
        return null

    def integer(
        self, name: str, default: int | Required = REQUIRED, *, minimum: int = 0, maximum: int = MAX_INTEGER
    ) -> int:
        """Read an integer in a range."""
        return self._integer(name, self.take(name, default), minimum, maximum)

    def integers(self, name: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> list[int]:
        """Read a list of integers in a range."""
        return [self._integer(name, value, minimum, maximum) for value in self.array(name)]

    def size(self, name: str, default: int | Required = REQUIRED, *, maximum: int = MAX_INTEGER) -> int:
        """Read an integer of at least 1."""
        return self.integer(name, default, minimum=1, maximum=maximum)

    def optional_size(self, name: str) -> int | None:
        """Read an integer of at least 1; None if the field is null or missing."""
        return None if self.take(name, None) is None else self.size(name)

    def number(self, name: str, default: float | Required = REQUIRED, *, minimum: float = 0.0) -> float:
        """Read a finite number in a range."""
        value, limit = self.take(name, default), sys.float_info.max
        if not isinstance(value, int | float) or isinstance(value, bool) or not max(minimum, -limit) <= value <= limit:
            bound = f" of at least {minimum:g}" if minimum > -limit else ""
            raise self.invalid(name, value, f"a finite number{bound}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Read a finite number of at least 0; None if the field is null or missing."""
        return None if self.take(name, None) is None else self.number(name)

    def flag(self, name: str, default: bool | Required = REQUIRED) -> bool:
        """Read true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, value, "true or false")
        return value

    def string(self, name: str, *, maximum: int = MAX_CHARACTERS) -> str:
        """Read a string of at most `maximum` characters."""
        return self._string(name, self.take(name), maximum)

    def strings(self, name: str) -> list[str]:
        """Read a list of strings of limited length."""
        return [self._string(name, value) for value in self.array(name)]

    def array(self, name: str, *, maximum: int = MAX_ITEMS) -> list[Any]:
        """Read a list of at most `maximum` items of any type."""
        value = self.take(name)
        if not isinstance(value, list) or len(value) > maximum:
            raise self.invalid(name, value, f"a list of at most {maximum:,} items")
        return value

    def choice(self, name: str, choices: Mapping[str, Choice], default: str | Required = REQUIRED) -> Choice:
        """Read a string that is a key of `choices`, and return its value there."""
        value = self.take(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.invalid(name, value, f"one of {', '.join(choices)}")
        return choices[value]

    def shared_number(self, *names: str) -> float:
        """Read fields that must all have the same value, and return it; 0 if all are missing."""
        numbers = {name: self.number(name) for name in names if name in self.found}
        if len(set(numbers.values())) > 1:
            listed = ", ".join(f"{self.path}{name} = {value}" for name, value in numbers.items())
            raise self._error(
                f"{self.source} has {listed}, but our models have one number for all of them. They only matter in "
                f"training; to leave them out, pass ignore={tuple(self.path + name for name in numbers)!r}"
            )
        return next(iter(numbers.values()), 0.0)

    def inner(self, name: str) -> Fields:
        """Read an object inside this one."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise self.invalid(name, value, "an object")
        path = f"{self.path}{name}."
        return Fields(value, source=self.source, ignore=self.ignore, path=path, error=self._error, advice=self._advice)

    def optional_inner(self, name: str) -> Fields | None:
        """Read an object inside this one; None if the field is null, {} or missing."""
        return None if self.take(name, None) in (None, {}) else self.inner(name)

    def changes_nothing(self, *names: str) -> None:
        """Accept any value of fields that do not affect what is computed."""
        for name in names:
            self._unread.pop(name, None)

    def only(self, **values: object) -> None:
        """Accept one value of each of these fields, or its absence."""
        for name, expected in values.items():
            value = self.take(name, expected)
            if value != expected or isinstance(value, bool) != isinstance(expected, bool):
                raise self.invalid(name, value, f"{json.dumps(expected)}, the only supported value")

    def finish(self) -> None:
        """Raise if a field has not been read."""
        if not self._unread:
            return
        names = tuple(self.path + name for name in sorted(self._unread)[:5])
        listed = ", ".join(
            f"{short_repr(name)[1:-1]} = {short_repr(self.found[name[len(self.path) :]])}" for name in names
        )
        more = f" and {len(self._unread) - 5} more" if len(self._unread) > 5 else ""
        advice = self._advice or (
            f"They may change what the model computes. If you know that they do not, pass ignore={short_repr(names)}"
        )
        raise self._error(f"{self.source} has unknown fields: {listed}{more}. {advice}")

    def invalid(self, name: str, value: object, expected: str) -> AttnScopeError:
        """The error for a field with an invalid value."""
        name = self.path + name
        advice = self._advice or f"To read the file as if it had no such field, pass ignore=({name!r},)"
        return self._error(f"{self.source}: {name}: expected {expected}, got {short_repr(value)}. {advice}")

    def _integer(self, name: str, value: object, minimum: int, maximum: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.invalid(name, value, f"an integer from {minimum:,} to {maximum:,}")
        return value

    def _string(self, name: str, value: object, maximum: int = MAX_CHARACTERS) -> str:
        if not isinstance(value, str) or len(value) > maximum:
            raise self.invalid(name, value, f"a string of at most {maximum:,} characters")
        return value


def short_repr(value: object) -> str:
    """The repr of an untrusted value: short, on one line, and without control characters."""
    return SHORT.repr(value)
