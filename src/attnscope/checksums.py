"""Checksums of files: SHA-256, or CRC-32 where large files are only checked for accidental damage.

In: paths. Out: hexadecimal digests, and the names of files that do not match theirs. Does not know: what the files
contain. Memory: one buffer.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

PIECE_BYTES = 2**17  # stays in a cache of the processor


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


def crc32_bytes(content: bytes) -> str:
    """The CRC-32 of some bytes, as 8 hexadecimal digits.

    >>> crc32_bytes(b"to be")
    'fb6b8c55'
    """
    digest = Crc32()
    digest.update(content)
    return digest.hexdigest()


def crc32_file(path: Path) -> str:
    """The CRC-32 of a file, as 8 hexadecimal digits.

    It finds every flipped bit and costs a tenth of SHA-256 on a processor without instructions for that, but somebody
    can make a file with a given CRC-32.

    Raises:
        OSError: The file cannot be read.
    """
    digest, buffer = Crc32(), memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


class Crc32:
    """The CRC-32 of a stream, with the methods of a hash of hashlib.

    >>> digest = Crc32()
    >>> digest.update(b"to be")
    >>> digest.hexdigest()
    'fb6b8c55'
    """

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: bytes | memoryview, /) -> None:
        """Add what follows in the stream."""
        self._value = zlib.crc32(content, self._value)

    def hexdigest(self) -> str:
        """The CRC-32 so far, as 8 hexadecimal digits."""
        return f"{self._value:08x}"


def find_damaged(folder: Path, checksums: Mapping[str, str], checksum: Callable[[Path], str]) -> list[str]:
    """The names of files that are missing, unreadable, outside of the folder, or have another checksum.

    Args:
        folder: Where the files are.
        checksums: The checksum of each file by its relative path; it may come from an untrusted file.
        checksum: Computes the checksum of a file: `sha256_file` or `crc32_file`.

    Returns:
        The names, in the order of `checksums`; empty if all files are intact. Files without a checksum do not count.
    """
    return [name for name, expected in checksums.items() if not _is_intact(folder, name, expected, checksum)]


def _is_intact(folder: Path, name: str, expected: str, checksum: Callable[[Path], str]) -> bool:
    try:
        path = folder / PurePosixPath(name)
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            return False
        return checksum(path) == expected
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False
