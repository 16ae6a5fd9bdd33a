"""Read trace.json, which may be damaged or hostile, and compute its content hash.

In: a path or an object. Out: the object, or its fields as `Fields` that raise `TraceError`.
Does not know: what the fields mean. Memory: O(bytes of the file), which are limited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError, TraceError
from attnscope.models.json_fields import MAX_ITEMS, Fields
from attnscope.models.json_files import parse_json, read_text

MAX_BYTES = 16 * 2**20

ADVICE = "The trace is damaged, or was not written by AttnScope; save it again"


def read_manifest(path: Path) -> dict[str, Any]:
    """The object in a file of limited size; raises TraceError if it is too large or not a JSON object."""
    try:
        text = read_text(path, MAX_BYTES)
        items = sum(map(text.count, "{[,"))  # a file of empty lists takes twenty times its size in memory
        if items > MAX_ITEMS:
            raise TraceError(f"{path}: expected at most {MAX_ITEMS:,} values, got {items:,}")
        return parse_json(text, path)
    except CheckpointError as error:
        raise TraceError(str(error)) from error


def content_hash(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest without its own `content` field; it covers the hashes of all other files."""
    content = {name: value for name, value in manifest.items() if name != "content"}
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"trace.json has values that JSON does not allow ({error}). {ADVICE}") from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def trace_fields(found: object, source: str) -> Fields:
    """The fields of an object in a manifest; invalid ones raise TraceError."""
    return Fields(found, source=source, error=TraceError, advice=ADVICE)
