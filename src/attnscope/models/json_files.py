"""Untrusted text and JSON files, and how to write JSON.

In: a path, and a limit in bytes. Out: its bytes, its text, or the JSON object in it; an invalid file raises a
`CheckpointError` with its name.
Does not know: what the objects mean.
Memory: O(bytes of the file), at most the limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from attnscope.errors import CheckpointError

MAX_BYTES = 16 * 2**20
"""The limit of a configuration; real ones have a few thousand bytes."""

DOWNLOAD_AGAIN = "download it again"


class ReadablePath(Protocol):
    """What reading needs of a path: a `Path` has it, and so has one in an object store."""

    def is_file(self) -> bool:
        """Whether there is a file."""
        ...

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        ...

    def open(self, mode: str, /) -> Any:
        """The file, opened."""
        ...


def read_bytes(path: ReadablePath, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file of at most `max_bytes`."""
    if not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)  # not the size in the directory: the file may have grown since
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > max_bytes:
        raise CheckpointError(f"{path} has more than {max_bytes:,} bytes")
    return content


def read_text(path: ReadablePath, max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 file of at most `max_bytes`."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error}") from error


def read_json(path: ReadablePath, max_bytes: int = MAX_BYTES, *, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Read the JSON object in a file of at most `max_bytes`; duplicate keys raise an error, which ends in `advice`."""
    return parse_json(read_text(path, max_bytes), path, advice=advice)


def parse_json(text: str, path: ReadablePath, *, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Parse the text of a file as a JSON object; `advice` says what to do with one that is damaged."""
    try:
        found = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); {advice}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got a {type(found).__name__}; {advice}")
    return found


def read_optional_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file, or return an empty one if there is no such file."""
    return read_json(path, max_bytes) if path.exists() else {}


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write an object as indented JSON."""
    path.write_bytes(dump_json(found))


def dump_json(found: dict[str, Any]) -> bytes:
    """Encode an object as indented JSON in UTF-8."""
    return (json.dumps(found, indent=2) + "\n").encode("utf-8")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; duplicate keys raise an error, because readers differ in which value they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        duplicate = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"duplicate key {duplicate[:100]!r}")
    return found
