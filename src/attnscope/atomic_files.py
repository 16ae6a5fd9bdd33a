"""Writes files atomically: a path has its old content or its new content, never a part of it.

In: a path and bytes. Out: the file. Does not know: what is written. Memory: none of its own.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TEMPORARY = ".*.tmp"
"""Matches the names of files that are not completely written, for example after a kill."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it.

    Args:
        path: The file; its folder must exist.
        content: The bytes to write.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "run.json"), b"{}")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('run.json', b'{}')]
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, on systems that can open folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
