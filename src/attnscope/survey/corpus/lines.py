"""Reads the lines of a span of a file, of any length, and hashes the bytes of the span.

In: an open file and a span of it. Out: each line with its byte offset, from the first line that starts at or after a
given offset, and on past the end of the span until the caller stops.
Does not know: the meaning of a line. Memory: `MAX_TEXT_BYTES` bytes and a copy; longer lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnscope.survey.corpus.files import OpenFile
from attnscope.survey.corpus.plan import Span

MAX_TEXT_BYTES = 16 * 2**20
"""The maximum size of a line or a document; longer ones are skipped."""

MAX_COUNTED_BYTES = 64 * MAX_TEXT_BYTES
"""How far a line or document that is too long is followed past its span, to know how much is skipped."""

READ_BYTES, READ_BYTES_PAST_SPAN = 2**20, 2**16  # bytes per read, within the span and after it


class SpanReader:
    """Reads a file from offset `first`, at or before the start of a span, and hashes the bytes of the span."""

    def __init__(self, file: OpenFile, span: Span, first: int, digest: Any):
        self.first = self.at = first
        self._file, self._digest = file, digest
        self._start, self._stop = span.start, span.stop

    @property
    def is_past_span(self) -> bool:
        """Whether the whole span has been read."""
        return self.at >= self._stop

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(self.at)
        while block := self._file.read(self._next_size()):
            if self._start <= self.at < self._stop:
                self._digest.update(block)
            self.at += len(block)
            yield block

    def _next_size(self) -> int:
        """How many bytes to read next, so that no read crosses an end of the span."""
        if self.at < self._start:
            return self._start - self.at
        return READ_BYTES_PAST_SPAN if self.is_past_span else min(READ_BYTES, self._stop - self.at)


def read_lines(reader: SpanReader) -> Iterator[tuple[int, bytes | int]]:
    """Yield the offset of each line, and its bytes with the line end; of a line that is too long, how many.

    The first line starts at the start of the file, or after the first line end. Lines that start after the span follow,
    too: stop iterating when you have enough.
    """
    held, length, start = list[bytes](), 0, reader.first
    inside = start > 0  # a line that started earlier
    for block in reader:
        begin = 0
        if inside:
            begin = block.find(b"\n") + 1
            inside, start = not begin, start + (begin or len(block))
            if inside and reader.is_past_span:
                return
            if inside:
                continue
        while end := block.find(b"\n", begin) + 1:
            length += end - begin
            line = block[begin:end]
            if held:
                line = b"".join((*held, line))
                held.clear()
            yield start, line if length <= MAX_TEXT_BYTES else length
            start, length, begin = start + length, 0, end
        length += len(block) - begin
        if length > MAX_TEXT_BYTES:
            held.clear()
            if reader.is_past_span and length > MAX_COUNTED_BYTES:  # another shard finds its end
                yield start, length
                return
        elif begin < len(block):
            held.append(block[begin:])
    if length:
        yield start, b"".join(held) if length <= MAX_TEXT_BYTES else length
