"""A log of JSON lines, each with a checksum: lines are only appended, and a damaged one is known by its number.

    {"step": 100, "loss": 2.31, "crc32": "5f3a90c2"}

In: objects. Out: lines, whose last field is the CRC-32 of the bytes before it; and the objects again. A process that is
killed may leave an incomplete last line.
Does not know: what the fields mean. Memory: the file.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.checksums import crc32_bytes
from attnscope.errors import CheckpointError
from attnscope.models.json_files import read_bytes

LINE = re.compile(rb'(\{.+), "crc32": "([0-9a-f]{8})"\}')
MAX_BYTES = 2**28  # millions of lines


class LogLine(NamedTuple):
    """A line of a log."""

    number: int
    """Its number, from 1 on."""
    fields: dict[str, Any] | None
    """Its fields, without the checksum; None if it is damaged."""
    stop: int
    """The position in the file after its last byte, without the line break."""
    is_ended: bool
    """Whether a line break follows."""


def encode_line(fields: Mapping[str, Any]) -> bytes:
    r"""Encode an object with at least one field as a line.

    >>> encode_line({"step": 1, "loss": 0.5})
    b'{"step": 1, "loss": 0.5, "crc32": "8b97f1ca"}\n'
    """
    content = json.dumps(fields).encode("ascii")[:-1]
    return content + f', "crc32": "{crc32_bytes(content)}"}}\n'.encode("ascii")


def split_lines(content: bytes) -> Iterator[LogLine]:
    """Yield the lines of a log."""
    start = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        stop = start + len(line)
        if stop < len(content) or line:
            yield LogLine(number, _decode_line(line), stop, stop < len(content))
        start = stop + 1


def read_log(path: Path, *, advice: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the fields of each line; an incomplete last line is left out with a warning.

    Raises:
        CheckpointError: The file cannot be read, or a line is damaged; the message ends in `advice`.
    """
    for line in split_lines(read_bytes(path, MAX_BYTES)):
        if line.fields is not None:
            yield line.number, line.fields
        elif line.is_ended:
            raise damaged_line_error(path, line.number, advice)
        else:
            warnings.warn(f"{path}: left out line {line.number}, which is not complete", stacklevel=2)


def damaged_line_error(path: Path, number: int, advice: str) -> CheckpointError:
    """The error for a damaged line."""
    return CheckpointError(f"{path}, line {number}: damaged, its checksum does not match its content; {advice}")


def _decode_line(line: bytes) -> dict[str, Any] | None:
    parts = LINE.fullmatch(line)
    if parts is None or crc32_bytes(parts[1]) != parts[2].decode("ascii"):
        return None
    try:
        fields = json.loads(parts[1] + b"}")
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
