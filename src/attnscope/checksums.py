"""SHA-256 checksums of files and folders.

In: paths. Out: hexadecimal digests, and the names of files that do not match theirs. Does not know: what the files
contain. Memory: one buffer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits.

    Raises:
        OSError: The file cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "empty").touch()
    ...     sha256_file(Path(folder) / "empty")[:16]
    'e3b0c44298fc1c14'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder and in the folders inside it, by its relative path with forward slashes.

    Raises:
        OSError: A file cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def find_damaged(folder: Path, checksums: Mapping[str, str]) -> list[str]:
    """The names of files that are missing, unreadable, outside of the folder, or have another SHA-256.

    Args:
        folder: Where the files are.
        checksums: What `sha256_folder` returned; it may come from an untrusted file.

    Returns:
        The names, in the order of `checksums`; empty if all files are intact. Files without a checksum do not count.
    """
    return [name for name, expected in checksums.items() if not _is_intact(folder, name, expected)]


def _is_intact(folder: Path, name: str, expected: str) -> bool:
    try:
        path = folder / PurePosixPath(name)
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            return False
        return sha256_file(path) == expected
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False
