"""The lines of a part of a file, however long they are, and a hash of its bytes.

In: an open file and a span of it. Out: each line with the byte it begins at, from the first one that begins behind a
given place to as far behind the span as somebody asks.
Does not know: what a line means. Memory: `MOST` bytes and a copy; longer lines are passed over block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from attnscope.survey.corpus.plan import Span

MOST = 16 * 2**20
"""Bytes of a line, or of a document, that are held at most."""

BLOCK, BEYOND = 2**20, 2**16  # bytes read at a time: within a span, and behind it to the end of what begins in it


class Blocks:
    """The bytes of a file from `first` on, which is before a span or its start; those of the span are hashed."""

    def __init__(self, file: IO[bytes], span: Span, first: int, digest: Any):
        self.first = self.at = first
        self._file, self._digest = file, digest
        self._start, self._stop = span.start, span.stop

    @property
    def behind(self) -> bool:
        """Whether the whole span was read."""
        return self.at >= self._stop

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(self.at)
        while block := self._file.read(self._next()):
            if self._start <= self.at < self._stop:
                self._digest.update(block)
            self.at += len(block)
            yield block

    def _next(self) -> int:
        """How many bytes to read: none of the borders of the span lies within a block."""
        if self.at < self._start:
            return self._start - self.at
        return BEYOND if self.behind else min(BLOCK, self._stop - self.at)


def lines_of(blocks: Blocks) -> Iterator[tuple[int, bytes | None]]:
    """Where each line begins, and its bytes with their end; None for one that is too long to be held.

    The first one begins at the start of the file, or behind the first line end. Lines that begin behind the span come,
    too: whoever has enough stops asking.
    """
    held, length, start = list[bytes](), 0, blocks.first
    inside = start > 0  # of a line that began before
    for block in blocks:
        begin = 0
        if inside:
            begin = block.find(b"\n") + 1
            inside, start = not begin, start + (begin or len(block))
            if inside and blocks.behind:
                return
            if inside:
                continue
        while end := block.find(b"\n", begin) + 1:
            length += end - begin
            line = block[begin:end]
            if held:
                line = b"".join((*held, line))
                held.clear()
            yield start, line if length <= MOST else None
            start, length, begin = start + length, 0, end
        length += len(block) - begin
        if length > MOST:
            held.clear()
            if blocks.behind:  # where it ends is another shard's concern
                yield start, None
                return
        elif begin < len(block):
            held.append(block[begin:])
    if length:
        yield start, b"".join(held) if length <= MOST else None
