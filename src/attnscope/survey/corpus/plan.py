"""A corpus divided into shards: which bytes of which files are read in one go.

In: settings. Out: a `Plan`, the same one whenever settings and files are the same. Only sizes of files and the footers
of Parquet are read. Small files share a shard, large ones are divided.
Does not know: what is in the text. Memory: one entry a file and a shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import NamedTuple

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.survey.corpus.files import Source, listed, opened
from attnscope.survey.settings import Settings

MIN_BYTES = 2**16  # of a shard, unless another size is asked for
SHARDS = 2**12  # so many at most, about, unless another size is asked for
MAX_SHARDS = 2**20


class Span(NamedTuple):
    """A part of a file: bytes [start, stop) of text and jsonl, row groups [start, stop) of parquet."""

    file: str
    kind: str
    start: int
    stop: int


class Shard(NamedTuple):
    """What is read in one go, and what is done again if that fails."""

    number: int
    spans: tuple[Span, ...]


class Problem(NamedTuple):
    """Something that was left out, and why."""

    file: str
    place: str
    """As "byte 1,234", "row group 3", "row 17", or "" for a whole file."""
    what: str


class Plan(NamedTuple):
    """Every shard of a corpus."""

    shards: tuple[Shard, ...]
    problems: tuple[Problem, ...]
    size: int
    """Bytes to read: those of files, and of Parquet those of the column as they are before compression."""
    fingerprint: str
    """Another text whenever any shard could give another result."""


class _Portion(NamedTuple):
    """A file, or a row group of one: Parquet cannot be divided any further."""

    span: Span
    size: int


def make_plan(settings: Settings) -> Plan:
    """The shards of a corpus; files that cannot be read become problems, and if nothing is left, an error.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, size in (("a.txt", 10), ("b.txt", 10), ("c.txt", 250)):
    ...         _ = Path(folder, name).write_bytes(b"x" * size)
    ...     plan = make_plan(Settings(model="", sources=(folder,), shard_bytes=100))
    >>> [[(span.start, span.stop) for span in shard.spans] for shard in plan.shards]
    [[(0, 10), (0, 10), (0, 125)], [(125, 250)]]
    """
    sources = listed(settings.sources)
    portions, problems = list[_Portion](), list[Problem]()
    for source in sources:
        for found in _portions(source, settings.field):
            if isinstance(found, Problem):
                problems.append(found)
            else:
                portions.append(found)
    size = sum(portion.size for portion in portions)
    if not portions:
        first = problems[0]
        raise SettingError(
            f"survey: there is nothing to read in {len(problems):,} files; the first, {first.file}, {first.what}"
        )
    most = settings.shard_bytes or max(MIN_BYTES, -(-size // SHARDS))
    if size // most > MAX_SHARDS:
        raise SettingError(
            f"survey: shards of {most:,} bytes were asked for; {size:,} bytes would make more than {MAX_SHARDS:,} of "
            f"them; give {-(-size // MAX_SHARDS):,} bytes at least"
        )
    shards = tuple(Shard(number, spans) for number, spans in enumerate(_filled(_divided(portions, most), most)))
    return Plan(shards, tuple(problems), size, _fingerprint(settings, sources, shards))


def _portions(source: Source, field: str) -> Iterator[_Portion | Problem]:
    if source.size == 0:
        yield Problem(source.address, "", "is empty")
    elif source.kind == "parquet":
        yield from _row_groups(source, field)
    else:
        yield _Portion(Span(source.address, source.kind, 0, source.size), source.size)


def _row_groups(source: Source, field: str) -> Iterator[_Portion | Problem]:
    """The row groups of a file, each with the bytes that its column of text has."""
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    try:
        with opened(source.address) as stream, parquet.ParquetFile(stream) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (OSError, arrow.ArrowException) as error:
        yield Problem(source.address, "", f"is damaged or not Parquet: {error}")
        return
    if field not in schema.names:
        yield Problem(source.address, "", f"has no column {field!r}; its columns are {', '.join(schema.names)}")
        return
    kind = schema.field(field).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        yield Problem(source.address, "", f"has {kind} in its column {field!r}, and not text")
        return
    if metadata.num_rows == 0:
        yield Problem(source.address, "", "has no rows")
        return
    leaf = next(at for at in range(metadata.num_columns) if metadata.schema.column(at).path == field)
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).column(leaf).total_uncompressed_size
        yield _Portion(Span(source.address, source.kind, group, group + 1), size)


def _divided(portions: Iterable[_Portion], most: int) -> Iterator[_Portion]:
    """Files of twice `most` bytes and more as equal parts, none of them smaller than that."""
    for portion in portions:
        span, size = portion
        parts = 1 if span.kind == "parquet" else max(1, size // most)
        for part in range(parts):
            start, stop = size * part // parts, size * (part + 1) // parts
            yield portion if parts == 1 else _Portion(span._replace(start=start, stop=stop), stop - start)


def _filled(portions: Iterable[_Portion], most: int) -> Iterator[tuple[Span, ...]]:
    """The spans of each shard: portions in their order, until there are `most` bytes."""
    spans, size = list[Span](), 0
    for portion in portions:
        span = portion.span
        if spans and spans[-1].file == span.file and spans[-1].stop == span.start:
            spans[-1] = spans[-1]._replace(stop=span.stop)
        else:
            spans.append(span)
        size += portion.size
        if size >= most:
            yield tuple(spans)
            spans, size = [], 0
    if spans:
        yield tuple(spans)


def _fingerprint(settings: Settings, sources: list[Source], shards: tuple[Shard, ...]) -> str:
    """A hash over what is read and how; how the user wrote the sources, and a default size, make no difference."""
    told = {name: value for name, value in asdict(settings).items() if name not in ("sources", "shard_bytes")}
    return hashlib.sha256(json.dumps([told, sources, shards]).encode("utf-8")).hexdigest()
