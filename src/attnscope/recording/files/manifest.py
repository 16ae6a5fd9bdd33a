"""The fields of a trace.json that anybody may have written, each with the type and the range that it should have.

In: a file, or an object in it. Out: numbers, texts and lists that can be relied on, or a `TraceError` that says which
field is wrong and how. Every field is asked for; one that nobody asked for is refused.
Does not know: what the fields mean. Memory: O(bytes of the file), of which there is a limit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError, TraceError
from attnscope.models.checkpoint.fields import shown
from attnscope.models.json_files import parse_json, read_text

MAX_BYTES = 16 * 2**20
MAX_VALUES = 1_000_000
"""Brackets and commas: a file of empty lists would take twenty times its size in memory."""
MAX_NUMBER = 2**53
MAX_TEXT = 4_000

ADVICE = "the trace is damaged, or was not written by AttnScope; save it again"


def read_manifest(path: Path) -> dict[str, Any]:
    """The object in a file that is not too large, too deep or too much."""
    try:
        text = read_text(path, MAX_BYTES)
        values = sum(map(text.count, "{[,"))
        if values > MAX_VALUES:
            raise TraceError(f"{path} holds {values:,} values, and at most {MAX_VALUES:,} are read")
        return parse_json(text, path)
    except CheckpointError as error:
        raise TraceError(str(error)) from error


def content_hash(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of everything that a manifest says, whatever its layout; it names the hash of each other file."""
    said = {name: value for name, value in manifest.items() if name != "content"}
    try:
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"trace.json holds what JSON cannot ({error}); {ADVICE}") from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class Entry:
    """An object of which every field is asked for once.

    >>> entry = Entry({"kind": "causal", "offset": None}, "trace.json")
    >>> entry.text("kind"), entry.optional_whole("offset"), entry.finish()
    ('causal', None, None)
    """

    def __init__(self, found: object, where: str) -> None:
        if not isinstance(found, dict):
            raise TraceError(f"{where} is {shown(found)}, but has to be an object; {ADVICE}")
        self._left, self._where = dict(found), where

    def names(self) -> list[str]:
        """The fields that nobody has asked for yet."""
        return list(self._left)

    def take(self, name: str) -> Any:
        """The value of a field, whatever it is."""
        if name not in self._left:
            raise TraceError(f"{self._where} has no field {name!r}; {ADVICE}")
        return self._left.pop(name)

    def whole(self, name: str, lowest: int = 0, highest: int = MAX_NUMBER) -> int:
        """A whole number in a range."""
        return self._whole(name, self.take(name), lowest, highest)

    def optional_whole(self, name: str, lowest: int = -MAX_NUMBER) -> int | None:
        """A whole number, or None."""
        return None if self.is_null(name) else self.whole(name, lowest)

    def wholes(self, name: str, lowest: int = 0, highest: int = MAX_NUMBER) -> list[int]:
        """A list of whole numbers."""
        return [self._whole(name, value, lowest, highest) for value in self.values(name)]

    def whole_or_wholes(self, name: str, lowest: int = -MAX_NUMBER) -> int | list[int]:
        """A whole number, or a list of them."""
        return self.wholes(name, lowest) if isinstance(self._left.get(name), list) else self.whole(name, lowest)

    def is_null(self, name: str) -> bool:
        """Whether a field is None, which takes it."""
        if name in self._left and self._left[name] is None:
            self.take(name)
            return True
        return False

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.take(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
            raise self.wrong(name, value, "a finite number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None."""
        return None if self.is_null(name) else self.number(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """A text that is not long."""
        return self._text(name, self.take(name))

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        return [self._text(name, value) for value in self.values(name)]

    def values(self, name: str, most: int = MAX_VALUES) -> list[Any]:
        """A list of at most so many values, of any kind."""
        value = self.take(name)
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, value, f"a list of at most {most:,}")
        return value

    def entry(self, name: str) -> Entry:
        """An object inside this one."""
        return Entry(self.take(name), f"{self._where}: {name}")

    def optional_entry(self, name: str) -> Entry | None:
        """An object inside this one, or None."""
        return None if self.is_null(name) else self.entry(name)

    def finish(self) -> None:
        """Refuse what nobody has asked for."""
        if self._left:
            raise TraceError(f"{self._where} has fields that are not understood: {shown(sorted(self._left))}; {ADVICE}")

    def wrong(self, name: str, value: object, wanted: str) -> TraceError:
        """The refusal of a value."""
        return TraceError(f"{self._where}: {name} is {shown(value)}, but has to be {wanted}; {ADVICE}")

    def _whole(self, name: str, value: object, lowest: int, highest: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.wrong(name, value, f"a whole number from {lowest:,} to {highest:,}")
        return value

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.wrong(name, value, f"a text of at most {MAX_TEXT:,} characters")
        return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number with more digits than a float has
        return False
