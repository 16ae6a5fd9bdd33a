"""Reads the documents of a shard from text files, JSONL or Parquet.

In: a shard and the settings. Out: `ShardDocuments`: documents and problems in the order of the files, and a digest of
the bytes that were read. Damaged content is a problem; a file that cannot be accessed, or has changed since the shards
were planned, is an error. With a separator, JSONL or Parquet, the documents do not depend on the shards: a document
belongs to the shard that it starts in, and is read to its end.
Does not know: tokens, models. Memory: `MAX_TEXT_BYTES` bytes of text and a few copies; some rows of Parquet.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnscope.errors import CheckpointError, SettingError
from attnscope.extras import import_extra
from attnscope.survey.corpus.files import DAMAGED_ARCHIVE, AccessError, OpenFile, file_version, open_file
from attnscope.survey.corpus.lines import MAX_COUNTED_BYTES, MAX_TEXT_BYTES, SpanReader, read_lines
from attnscope.survey.corpus.plan import Problem, Shard, Span, column_bytes
from attnscope.survey.settings import Settings

ROWS, BUFFER = 64, 2**16  # rows and bytes of a Parquet column per read: some documents have megabytes
MAX_PROBLEMS_PER_SPAN = 100  # listed one by one; a file in another encoding has one in every line
TOO_LONG = f"is longer than {MAX_TEXT_BYTES // 2**20} MiB and is skipped"

Lines = Iterator[tuple[int, bytes | int]]
"""What `read_lines` yields."""


class Document(NamedTuple):
    """A text, and where it starts: a byte of its file, or a row of Parquet."""

    text: str
    file: str
    start: int


class ShardDocuments:
    r"""Iterates over the documents of a shard, none of them empty, and over problems with skipped input.

    Each iteration reads the shard again.

    Raises:
        AccessError: A file cannot be accessed, perhaps only now.
        CheckpointError: A file has changed since the shards were planned.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "poems.jsonl")
    ...     _ = path.write_text('{"text": "a rose"}\n{"name": "rose"}\n{"text": "is a rose"}')
    ...     span = Span(str(path), "jsonl", 0, path.stat().st_size)
    ...     documents = ShardDocuments(Shard(0, (span,)), Settings(model="", sources=(folder,)))
    ...     [found.text if isinstance(found, Document) else (found.location, found.reason) for found in documents]
    ['a rose', ('byte 19', "has no field 'text'"), 'is a rose']
    """

    def __init__(self, shard: Shard, settings: Settings):
        self.shard, self.settings = shard, settings
        self.num_documents = 0
        """The number of documents so far."""
        self._hash, self._complete = hashlib.sha256(), False

    @property
    def digest(self) -> str:
        """A hash of the bytes of all spans, or of the Parquet values; available after the last document."""
        if not self._complete:
            raise SettingError(f"the digest of shard {self.shard.number} is available after its last document")
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[Document | Problem]:
        self.num_documents, self._hash, self._complete = 0, hashlib.sha256(), False
        for span in self.shard.spans:
            problems = more_bytes = 0
            for found in self._read_span(span):
                if isinstance(found, Document):
                    self.num_documents += 1
                    yield found
                else:
                    problems += 1
                    if problems <= MAX_PROBLEMS_PER_SPAN:
                        yield found
                    else:
                        more_bytes += found.skipped_bytes
            if problems > MAX_PROBLEMS_PER_SPAN:
                location = f"row group {span.start:,}" if span.format == "parquet" else f"byte {span.start:,}"
                more = problems - MAX_PROBLEMS_PER_SPAN
                yield Problem(span.file, location, f"has {more:,} more problems from here on", more_bytes)
            self._hash.update(b"\0end of span\0")
        self._complete = True

    def _read_span(self, span: Span) -> Iterator[Document | Problem]:
        """Read a span, and check that its file is still the one that was planned."""
        try:
            with open_file(span.file) as file:
                if span.format == "parquet":
                    yield from _read_parquet(file, span, self.settings.field, self._hash)
                else:
                    yield from _read_text(file, span, self.settings, self._hash)
        except DAMAGED_ARCHIVE as error:
            size = 0 if span.format == "parquet" else span.stop - span.start
            yield Problem(span.file, "", f"is in a damaged archive: {error}", size)
        except AccessError:
            _check_unchanged(span)
            raise
        _check_unchanged(span)


def _check_unchanged(span: Span) -> None:
    """Raise an error if the file of a span is not the one that was planned, before or during reading."""
    if span.version and (found := file_version(span.file)) != span.version:
        raise CheckpointError(
            f"survey: {span.file} has changed while the survey ran (size and time {span.version}, now {found}); "
            "restore it with its time and run the same command again, or start a survey in another folder"
        )


def _read_text(file: OpenFile, span: Span, settings: Settings, digest: Any) -> Iterator[Document | Problem]:
    separator = None if settings.separator is None else settings.separator.encode("utf-8")
    # A line starts after a line end, and a document after a separator, which may start before the span.
    back = 1 if separator is None or span.format == "jsonl" else len(separator) + len("\n\r\n")
    reader = SpanReader(file, span, max(0, span.start - back), digest)
    lines = read_lines(reader)
    if span.format == "jsonl":
        yield from _json_lines(lines, span, settings.field)
    elif separator is None:
        yield from _whole_text(lines, span)
    else:
        yield from _split_at_separator(lines, span, separator)
    if not reader.is_past_span:
        raise AccessError(f"{span.file} cannot be read: it ends at byte {reader.at:,}, before byte {span.stop:,}")


def _lines_starting_in(span: Span, lines: Lines) -> Lines:
    for start, line in lines:
        if start >= span.stop:
            return
        if start >= span.start:  # the byte before a span may be a line of its own
            yield start, line


def _json_lines(lines: Lines, span: Span, field: str) -> Iterator[Document | Problem]:
    for start, line in _lines_starting_in(span, lines):
        location = f"byte {start:,}"
        if isinstance(line, int):
            yield Problem(span.file, location, f"the line {TOO_LONG}", line)
            continue
        try:
            text = line.decode("utf-8-sig" if start == 0 else "utf-8")
            value = json.loads(text) if text.strip() else {field: ""}
        except UnicodeDecodeError as error:
            yield _not_utf8(span, start, line, error)
        except (ValueError, RecursionError) as error:
            yield Problem(span.file, location, f"is not valid JSON: {error}", len(line))
        else:
            if reason := _field_fault(value, field):
                yield Problem(span.file, location, reason, len(line))
            else:
                yield from _unless_empty(value[field], span, start)


def _field_fault(value: Any, field: str) -> str:
    """Why a JSON value has no text, or "" if it has."""
    if not isinstance(value, dict):
        return f"is JSON, but not an object with a field {field!r}"
    if field not in value:
        return f"has no field {field!r}"
    text = value[field]
    if not isinstance(text, str):
        return f"has a field {field!r} that is not a string"
    return "" if text.isascii() or _is_valid_unicode(text) else f"has an unpaired surrogate in its field {field!r}"


def _whole_text(lines: Lines, span: Span) -> Iterator[Document | Problem]:
    """All lines of a span as one document, or as several if it is longer than `MAX_TEXT_BYTES`."""
    held, begin = bytearray(), span.start
    for start, line in _lines_starting_in(span, lines):
        if isinstance(line, int) or len(held) + len(line) > MAX_TEXT_BYTES:
            yield from _decode_utf8(held, span, begin)
            held.clear()
        if isinstance(line, int):
            yield Problem(span.file, f"byte {start:,}", f"the line {TOO_LONG}", line)
            continue
        if not held:
            begin = start
        held += line
    yield from _decode_utf8(held, span, begin)


def _split_at_separator(lines: Lines, span: Span, separator: bytes) -> Iterator[Document | Problem]:
    """The documents that start in a span: at the start of the file, and after each separator line."""
    separators = [separator + end for end in (b"\n", b"\r\n", b"", b"\r")]
    held, begin, skipped = bytearray(), 0, 0  # skipped: bytes of a document that is too long
    ours = span.start == 0  # whether a document of this span is being read
    for start, line in lines:
        if isinstance(line, bytes) and line in separators:
            if ours:
                yield from _decode_or_skip(held, skipped, span, begin)
            held.clear()
            begin, skipped = start + len(line), 0
            ours = span.start <= begin < span.stop
        elif start >= span.stop and (skipped > MAX_COUNTED_BYTES or not ours):
            break
        elif ours and (isinstance(line, int) or skipped or len(held) + len(line) > MAX_TEXT_BYTES):
            skipped += len(held) + (line if isinstance(line, int) else len(line))
            held.clear()
        elif ours and isinstance(line, bytes):
            held += line
    if ours:
        yield from _decode_or_skip(held, skipped, span, begin)


def _decode_or_skip(content: bytearray, skipped: int, span: Span, start: int) -> Iterator[Document | Problem]:
    if skipped:
        yield Problem(span.file, f"byte {start:,}", f"the document {TOO_LONG}", skipped)
    else:
        yield from _decode_utf8(content, span, start)


def _decode_utf8(content: bytearray, span: Span, start: int) -> Iterator[Document | Problem]:
    """A document, or the parts of it between lines that are not UTF-8."""
    try:
        yield from _unless_empty(content.decode("utf-8"), span, start)
        return
    except UnicodeDecodeError:
        pass
    good, begin, at = bytearray(), start, start
    for line in io.BytesIO(content):
        try:
            line.decode("utf-8")
            good += line
        except UnicodeDecodeError as error:
            yield from _unless_empty(good.decode("utf-8"), span, begin)
            yield _not_utf8(span, at, line, error)
            good.clear()
            begin = at + len(line)
        at += len(line)
    yield from _unless_empty(good.decode("utf-8"), span, begin)


def _not_utf8(span: Span, start: int, line: bytes, error: UnicodeDecodeError) -> Problem:
    reason = f"is not UTF-8 ({error.reason}), and its line is skipped"
    return Problem(span.file, f"byte {start + error.start:,}", reason, len(line))


def _unless_empty(text: str, span: Span, start: int) -> Iterator[Document]:
    if text:
        yield Document(text, span.file, start)


def _is_valid_unicode(text: str) -> bool:
    """Whether a string has no unpaired surrogates, which JSON can express."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _read_parquet(file: OpenFile, span: Span, field: str, digest: Any) -> Iterator[Document | Problem]:
    """The rows of some row groups, without nulls; a damaged group is read up to the damage."""
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    damage = OSError, IndexError, arrow.ArrowException
    try:
        with parquet.ParquetFile(file, buffer_size=BUFFER, page_checksum_verification=True) as opened_file:
            metadata = opened_file.metadata
            rows = [metadata.row_group(group).num_rows for group in range(span.stop)]
            for group in range(span.start, span.stop):
                first = sum(rows[:group])
                try:
                    batches = opened_file.iter_batches(ROWS, row_groups=[group], columns=[field])
                    yield from _parquet_values(batches, span, first, digest)
                except AccessError:
                    raise
                except damage as error:
                    size = column_bytes(metadata, group, field)
                    yield Problem(span.file, f"row group {group:,}", f"is damaged: {error}", size)
    except AccessError:
        raise
    except damage as error:
        yield Problem(span.file, f"row group {span.start:,}", f"is no longer the same Parquet file: {error}")


def _parquet_values(batches: Iterator[Any], span: Span, row: int, digest: Any) -> Iterator[Document | Problem]:
    """The texts of batches with a single column, of which the first is row `row` of the file."""
    binary = import_extra("pyarrow").large_binary()
    for batch in batches:
        for value in batch.column(0).cast(binary):
            location, content = f"row {row:,}", value.as_py()
            digest.update(b"\0" if content is None else len(content).to_bytes(8, "little") + b"\1")
            if content is not None and len(content) > MAX_TEXT_BYTES:
                yield Problem(span.file, location, f"the text {TOO_LONG}", len(content))
            elif content is not None:
                digest.update(content)
                try:
                    yield from _unless_empty(content.decode("utf-8"), span, row)
                except UnicodeDecodeError as error:
                    yield Problem(span.file, location, f"is not UTF-8 ({error.reason})", len(content))
            row += 1
