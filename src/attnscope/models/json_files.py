"""Files of a model that hold text or JSON, read with suspicion.

In: a path, and the most bytes it may have. Out: its text, or the object it holds; whatever is wrong with the file is a
`CheckpointError` with its name.
Does not know: what the objects mean.
Memory: O(bytes of the file), never more than the limit allows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError

MAX_BYTES = 16 * 2**20
"""What a configuration may have: real ones have a few thousand bytes."""


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file of at most so many bytes."""
    if not path.is_file():  # opening a pipe would wait for somebody to write into it
        raise CheckpointError(f"{path} is not there" if not path.exists() else f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)  # and not the size that the folder lists: it may have grown since
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most_bytes:
        raise CheckpointError(f"{path} has more than {most_bytes:,} bytes, which is too much for such a file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error}") from error


def read_json(path: Path, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file of at most so many bytes; a key that stands twice in one object is refused."""
    return parse_json(read_text(path, most_bytes), path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """The JSON object that the text of a file is."""
    try:
        found = json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} should hold a JSON object, but holds a {type(found).__name__}")
    return found


def read_optional_json(path: Path, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file, or an empty one where there is no such file."""
    return read_json(path, most_bytes) if path.exists() else {}


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write an object as JSON that a person can read."""
    path.write_bytes(as_json(found))


def as_json(found: dict[str, Any]) -> bytes:
    """The same, for those who write in their own way."""
    return (json.dumps(found, indent=2) + "\n").encode("utf-8")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which every reader sees the same: of two values under one key, some take the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twin[:100]!r} stands twice in one object")
    return found
