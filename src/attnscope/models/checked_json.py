"""JSON objects with a checksum of their own, so that a file of AttnScope shows when it was damaged.

In: an object. Out: its bytes, whose last field, "checksum", is a SHA-256 of the others; and the object again, or a
`CheckpointError`. Does not know: what the fields mean. Memory: the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.models.json_files import MAX_BYTES, ReadablePath, dump_json, read_json

CHECKSUM = "checksum"


def encode_checked_json(found: Mapping[str, Any]) -> bytes:
    """Encode an object as indented JSON with its checksum; a checksum that it already has is replaced."""
    fields = _without_checksum(found)
    return dump_json(fields | {CHECKSUM: _checksum_of(fields)})


def read_checked_json(path: ReadablePath, max_bytes: int = MAX_BYTES, *, advice: str) -> dict[str, Any]:
    """Read an object that `encode_checked_json` encoded, and return it without its checksum.

    Raises:
        CheckpointError: The file cannot be read, or is not what was written; the message ends in `advice`.
    """
    return remove_checksum(read_json(path, max_bytes, advice=advice), path, advice=advice)


def remove_checksum(found: Mapping[str, Any], path: ReadablePath, *, advice: str) -> dict[str, Any]:
    """Return the object of a file without its checksum.

    Raises:
        CheckpointError: The checksum does not match the other fields; the message ends in `advice`.
    """
    fields = _without_checksum(found)
    try:
        is_intact = found.get(CHECKSUM) == _checksum_of(fields)
    except RecursionError:
        is_intact = False
    if not is_intact:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content; {advice}")
    return fields


def _without_checksum(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != CHECKSUM}


def _checksum_of(fields: dict[str, Any]) -> str:
    return f"sha256:{hashlib.sha256(dump_json(fields)).hexdigest()}"
