"""The checksums of a saved model: a small file next to it, with the CRC-32 of every block of the others.

In: a folder. Out: nothing, or a `CheckpointError` that names the file that was damaged. Checksums are computed in a
thread while another one reads the model. Folders without the file, as others write them, are not checked.
CRC-32 finds every flipped bit and any two in a block, and misses other damage once in 4 billion times; it costs a
fraction of a cryptographic hash, which would not stop who can write the folder either.
Does not know: what the files mean. Memory: one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from zlib import crc32

from attnscope.errors import CheckpointError
from attnscope.models.json_fields import Fields
from attnscope.models.json_files import read_json, write_json

FILE = "attnscope-checksums.json"
VERSION = 1
BLOCK_BYTES, BUFFER_BYTES = 2**26, 2**20
ADVICE = f"Copy the folder again, or delete {FILE} to load it without checksums"

Checksums = Mapping[str, list[int]]
"""The CRC-32 of each block of a file, by its name."""


class BlockChecksums:
    """Computes the CRC-32 of each block of a stream.

    >>> checksums = BlockChecksums()
    >>> checksums.update(b"to be")
    >>> checksums.blocks
    [4218129493]
    """

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self._room = 0

    def update(self, content: bytes | memoryview) -> None:
        """Add what follows in the stream."""
        rest = memoryview(content)
        while len(rest):
            if not self._room:
                self.blocks.append(0)
                self._room = BLOCK_BYTES
            part, rest = rest[: self._room], rest[self._room :]
            self.blocks[-1] = crc32(part, self.blocks[-1])
            self._room -= len(part)


def file_checksums(path: Path) -> list[int]:
    """The CRC-32 of each block of a file."""
    found, buffer = BlockChecksums(), memoryview(bytearray(BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found.update(buffer[:count])
    return found.blocks


def write_checksums(folder: Path, checksums: Checksums) -> None:
    """Write the checksums of files."""
    write_json(folder / FILE, {"version": VERSION, "block_bytes": BLOCK_BYTES, "crc32": dict(checksums)})


def read_checksums(folder: Path) -> Checksums:
    """The checksums of files; empty if the folder has none.

    Raises:
        CheckpointError: If the file is invalid, or of a newer version.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    fields = Fields(read_json(path), source=str(path), advice=ADVICE)
    fields.integer("version", minimum=1, maximum=VERSION)
    fields.only(block_bytes=BLOCK_BYTES)
    inner = fields.inner("crc32")
    fields.finish()
    names = list(inner.found)
    if wrong := next((name for name in names if Path(name).name != name or "\\" in name), None):
        raise fields.invalid("crc32", wrong, "the names of files in the same folder")
    return {name: inner.integers(name, maximum=2**32 - 1) for name in names}


@contextmanager
def verified(folder: Path) -> Iterator[None]:
    """Compare the files of a folder with their checksums while the block reads them.

    Raises:
        CheckpointError: At the end of the block, if a file has other checksums, also if the block has failed.
    """
    checksums = read_checksums(folder)
    damaged: list[str] = []
    thread = Thread(target=lambda: damaged.extend(_damaged_files(folder, checksums)), daemon=True)
    if checksums:
        thread.start()
    try:
        yield
    except Exception as error:  # which may come from the damage
        _finish(folder, thread, damaged, error)
        raise
    _finish(folder, thread, damaged, None)


def _damaged_files(folder: Path, checksums: Checksums) -> Iterator[str]:
    for name, expected in checksums.items():
        try:
            is_intact = (folder / name).is_file() and file_checksums(folder / name) == expected
        except OSError:
            is_intact = False
        if not is_intact:
            yield name


def _finish(folder: Path, thread: Thread, damaged: list[str], cause: Exception | None) -> None:
    if thread.ident is not None:
        thread.join()
    if cause is not None:  # it says by itself what is missing
        damaged = [name for name in damaged if (folder / name).exists()]
    if damaged:
        raise CheckpointError(
            f"{folder / damaged[0]} is not the file that was saved: its checksums differ from {FILE}. {ADVICE}"
        ) from cause
