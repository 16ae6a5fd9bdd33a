"""The documents of a shard: out of lines of text, lines of JSON, or rows of Parquet.

In: a shard and the settings. Out: a `Reading`: documents and problems in the order of the files, and a digest of the
bytes they came from. However a corpus is divided, its documents are the same: what begins in a shard belongs to it, and
is read to its end.
Does not know: tokens, models. Memory: `MOST` bytes of text and a few copies; of Parquet some rows at a time.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.survey.corpus.files import opened
from attnscope.survey.corpus.lines import MOST, Blocks, lines_of
from attnscope.survey.corpus.plan import Problem, Shard, Span
from attnscope.survey.settings import Settings

ROWS, BUFFER = 64, 2**16  # of Parquet, and bytes of a column, read at a time: some documents have megabytes
PROBLEMS = 100  # of a span that are told one by one; a file in another encoding has one in every line
TOO_LONG = f"is longer than {MOST // 2**20} MiB and is left out"


Lines = Iterator[tuple[int, bytes | None]]  # as of `lines_of`


class Document(NamedTuple):
    """A text, and where it begins: at a byte of its file, or in a row of Parquet."""

    text: str
    file: str
    start: int


class Reading:
    """A shard as documents and problems; each time it is iterated over, it is read anew."""

    def __init__(self, shard: Shard, settings: Settings):
        self.shard, self.settings = shard, settings
        self.documents = 0
        """How many documents there were so far."""
        self._hash, self._complete = hashlib.sha256(), False

    @property
    def digest(self) -> str:
        """A hash of the bytes of all spans, or of the values of Parquet; known once all documents were given."""
        if not self._complete:
            raise SettingError(f"Reading: the digest of shard {self.shard.number} is known after its last document")
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[Document | Problem]:
        self.documents, self._hash, self._complete = 0, hashlib.sha256(), False
        for span in self.shard.spans:
            problems = 0
            for found in self._found(span):
                if isinstance(found, Document):
                    self.documents += 1
                    yield found
                else:
                    problems += 1
                    if problems <= PROBLEMS:
                        yield found
            if problems > PROBLEMS:
                place = f"row group {span.start:,}" if span.kind == "parquet" else f"byte {span.start:,}"
                yield Problem(span.file, place, f"has {problems - PROBLEMS:,} more problems from here on")
            self._hash.update(b"\0end of span\0")
        self._complete = True

    def _found(self, span: Span) -> Iterator[Document | Problem]:
        """What a span has; a file that is gone or closed to us is a problem, a failing disk or network an error."""
        try:
            with opened(span.file) as file:
                if span.kind == "parquet":
                    yield from _rows(file, span, self.settings.field, self._hash)
                else:
                    yield from _texts(file, span, self.settings, self._hash)
        except (FileNotFoundError, PermissionError) as error:
            yield Problem(span.file, "", f"can no longer be opened: {error.strerror or error}")


def documents_of(shard: Shard, settings: Settings) -> Reading:
    r"""The documents of a shard, none of them empty, and what had to be left out.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "poems.jsonl")
    ...     _ = path.write_text('{"text": "a rose"}\n{"name": "rose"}\n{"text": "is a rose"}')
    ...     span = Span(str(path), "jsonl", 0, path.stat().st_size)
    ...     reading = documents_of(Shard(0, (span,)), Settings(model="", sources=(folder,)))
    ...     [found.text if isinstance(found, Document) else (found.place, found.what) for found in reading]
    ['a rose', ('byte 19', "has no field 'text'"), 'is a rose']
    """
    return Reading(shard, settings)


def _texts(file: IO[bytes], span: Span, settings: Settings, digest: Any) -> Iterator[Document | Problem]:
    border = None if settings.separator is None else settings.separator.encode("utf-8")
    # A line begins behind the end of another; a document behind a separator, which may begin before the span.
    back = 1 if border is None or span.kind == "jsonl" else len(border) + len("\n\r\n")
    blocks = Blocks(file, span, max(0, span.start - back), digest)
    lines = lines_of(blocks)
    if span.kind == "jsonl":
        yield from _json_lines(lines, span, settings.field)
    elif border is None:
        yield from _undivided(lines, span)
    else:
        yield from _separated(lines, span, border)
    if not blocks.behind:
        yield Problem(span.file, f"byte {span.start:,}", f"has become shorter: it ends before byte {span.stop:,}")


def _beginning_in(span: Span, lines: Lines) -> Lines:
    for start, line in lines:
        if start >= span.stop:
            return
        if start >= span.start:  # the byte before a span may be a whole line
            yield start, line


def _json_lines(lines: Lines, span: Span, field: str) -> Iterator[Document | Problem]:
    for start, line in _beginning_in(span, lines):
        place = f"byte {start:,}"
        if line is None:
            yield Problem(span.file, place, f"the line {TOO_LONG}")
            continue
        try:
            text = line.decode("utf-8-sig" if start == 0 else "utf-8")
            value = json.loads(text) if text.strip() else {field: ""}
        except UnicodeDecodeError as error:
            yield _not_utf8(span, start, error)
        except (ValueError, RecursionError) as error:
            yield Problem(span.file, place, f"is no JSON: {error}")
        else:
            if not isinstance(value, dict):
                yield Problem(span.file, place, f"is JSON, but no object with a field {field!r}")
            elif field not in value:
                yield Problem(span.file, place, f"has no field {field!r}")
            elif not isinstance(text := value[field], str):
                yield Problem(span.file, place, f"has a field {field!r} that is no text")
            elif text.isascii() or _is_whole(text):
                yield from _unless_empty(text, span, start)
            else:
                yield Problem(span.file, place, f"has half a character in its field {field!r}")


def _undivided(lines: Lines, span: Span) -> Iterator[Document | Problem]:
    """All lines of a span as one document, or as several where it is too long to be held."""
    held, begin = bytearray(), span.start
    for start, line in _beginning_in(span, lines):
        if line is None or len(held) + len(line) > MOST:
            yield from _decoded(held, span, begin)
            held.clear()
        if line is None:
            yield Problem(span.file, f"byte {start:,}", f"the line {TOO_LONG}")
            continue
        if not held:
            begin = start
        held += line
    yield from _decoded(held, span, begin)


def _separated(lines: Lines, span: Span, border: bytes) -> Iterator[Document | Problem]:
    """The documents that begin in a span: at the start of the file, and behind lines that are `border`."""
    borders = [border + end for end in (b"\n", b"\r\n", b"", b"\r")]
    held, begin = bytearray(), 0
    ours = whole = span.start == 0  # whether there is a document of this span, and whether it can be held
    for start, line in lines:
        if line is not None and line in borders:
            if ours and whole:
                yield from _decoded(held, span, begin)
            held.clear()
            begin = start + len(line)
            ours = whole = span.start <= begin < span.stop
        elif start >= span.stop and not (ours and whole):
            return
        elif ours and whole:
            whole = line is not None and len(held) + len(line) <= MOST
            if not whole:
                yield Problem(span.file, f"byte {begin:,}", f"the document {TOO_LONG}")
                held.clear()
            else:
                held += line or b""
    if ours and whole:
        yield from _decoded(held, span, begin)


def _decoded(content: bytearray, span: Span, start: int) -> Iterator[Document | Problem]:
    """A document, or what is left of it between lines that are not UTF-8."""
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
            yield _not_utf8(span, at, error)
            good.clear()
            begin = at + len(line)
        at += len(line)
    yield from _unless_empty(good.decode("utf-8"), span, begin)


def _not_utf8(span: Span, start: int, error: UnicodeDecodeError) -> Problem:
    return Problem(
        span.file, f"byte {start + error.start:,}", f"is not UTF-8 ({error.reason}), and its line is left out"
    )


def _unless_empty(text: str, span: Span, start: int) -> Iterator[Document]:
    if text:
        yield Document(text, span.file, start)


def _is_whole(text: str) -> bool:
    """Whether all characters are whole: JSON can write the halves of one that UTF-16 divides."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _rows(file: IO[bytes], span: Span, field: str, digest: Any) -> Iterator[Document | Problem]:
    """The rows of some row groups, without nulls; a group that is damaged ends where the damage begins."""
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    try:
        with parquet.ParquetFile(file, buffer_size=BUFFER, page_checksum_verification=True) as opened_file:
            rows = [opened_file.metadata.row_group(group).num_rows for group in range(span.stop)]
            for group in range(span.start, span.stop):
                first = sum(rows[:group])
                try:
                    batches = opened_file.iter_batches(ROWS, row_groups=[group], columns=[field])
                    yield from _values(batches, span, first, digest)
                except (OSError, arrow.ArrowException) as error:
                    yield Problem(span.file, f"row group {group:,}", f"is damaged: {_damage(error)}")
    except (OSError, arrow.ArrowException) as error:
        yield Problem(span.file, f"row group {span.start:,}", f"is no longer the Parquet it was: {_damage(error)}")


def _damage(error: Exception) -> Exception:
    """An error of Arrow's own; one that the system raised says nothing about the file, and goes on."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return error


def _values(batches: Iterator[Any], span: Span, row: int, digest: Any) -> Iterator[Document | Problem]:
    """The texts of batches with a single column, the first of them in `row` of the file."""
    binary = import_extra("pyarrow").large_binary()
    for batch in batches:
        for value in batch.column(0).cast(binary):
            place, content = f"row {row:,}", value.as_py()
            digest.update(b"\0" if content is None else len(content).to_bytes(8, "little") + b"\1")
            if content is not None and len(content) > MOST:
                yield Problem(span.file, place, f"the text {TOO_LONG}")
            elif content is not None:
                digest.update(content)
                try:
                    yield from _unless_empty(content.decode("utf-8"), span, row)
                except UnicodeDecodeError as error:
                    yield Problem(span.file, place, f"is not UTF-8 ({error.reason})")
            row += 1
