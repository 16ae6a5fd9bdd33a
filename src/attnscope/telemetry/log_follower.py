"""`LogFollower`: the lines of a log of JSON lines that were appended since the last time.

In: the path of a log that another process may write to. Out: the objects of its complete lines, each once.
Does not know: what the fields mean. Memory: one block of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.errors import CheckpointError
from attnscope.models.checked_log import damaged_line_error, split_lines

BLOCK_BYTES = 2**26


class NewLine(NamedTuple):
    """A line that was appended."""

    number: int  #: its number, from 1 on
    fields: dict[str, Any]


class LogReplacedError(Exception):
    """A log is another file than before, or shorter: its lines have to be read from the beginning."""


class LogFollower:
    """Reads a growing log.

    Args:
        path: The file, which need not exist yet.
        advice: The end of the message about a damaged line.
        block_bytes: How much is read at once; a longer line counts as damaged.
    """

    def __init__(self, path: Path, *, advice: str, block_bytes: int = BLOCK_BYTES) -> None:
        self._path, self._advice, self._block_bytes = path, advice, block_bytes
        self._file_id: tuple[int, int] | None = None
        self._offset = self._number = 0

    def read(self) -> Iterator[NewLine]:
        """Yield the complete lines after those that were read before.

        Raises:
            CheckpointError: The file cannot be read, or a line is damaged.
            LogReplacedError: The file was replaced, as by a run that resumes; a new follower reads it.
        """
        if not self._path.is_file():  # opening a named pipe would block
            if self._path.exists():
                raise CheckpointError(f"{self._path} is not a file")
            if self._file_id is not None:
                raise LogReplacedError
            return
        try:
            with self._path.open("rb") as file:
                self._check_same(file.fileno())
                file.seek(self._offset)
                while block := file.read(self._block_bytes):
                    yield from self._read_block(block)
                    if b"\n" not in block:
                        return
                    file.seek(self._offset)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be read: {error.strerror or error}") from error

    def _check_same(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        file_id = (found.st_dev, found.st_ino)
        if self._file_id not in (None, file_id) or found.st_size < self._offset:
            raise LogReplacedError
        self._file_id = file_id

    def _read_block(self, block: bytes) -> Iterator[NewLine]:
        if b"\n" not in block and len(block) == self._block_bytes:
            raise damaged_line_error(self._path, self._number + 1, self._advice)
        start, first = self._offset, self._number
        for line in split_lines(block):
            if not line.is_ended:
                return
            number = first + line.number
            if line.fields is None:
                raise damaged_line_error(self._path, number, self._advice)
            self._offset, self._number = start + line.stop + 1, number
            yield NewLine(number, line.fields)
