"""Divides a corpus into shards: which bytes of which files are read together.

In: settings. Out: a `ShardPlan`, which is the same whenever settings and files are the same. Only file sizes and
Parquet footers are read. Small files share a shard, large ones are split.
Does not know: the text. Memory: one entry per file and shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.stores.retries import retry_access
from attnscope.survey.corpus.files import DAMAGED_ARCHIVE, AccessError, CorpusFile, list_files, open_file
from attnscope.survey.settings import Settings

MIN_SHARD_BYTES = 2**16  # by default
DEFAULT_SHARDS = 2**12  # about so many by default, or more if the shards would be larger than the next constant
MAX_DEFAULT_SHARD_BYTES = 2**19
"""A worker that is killed loses at most one shard, so the size of a shard is bounded by minutes of work: 2^19 bytes are
about 130,000 tokens, which one CPU thread reads in ten minutes at 4.7 ms per token (SmolLM2-135M, docs/scale.md)."""
MAX_SHARDS = 2**20


class Span(NamedTuple):
    """A part of a file: bytes [start, stop) of text and jsonl, row groups [start, stop) of parquet."""

    file: str
    format: str
    start: int
    stop: int
    version: str = ""
    """The `CorpusFile.version` of the file when the shards were planned; "" if there is none to compare with."""


class Shard(NamedTuple):
    """The unit of work: read by one worker, and retried as a whole."""

    number: int
    spans: tuple[Span, ...]


class Problem(NamedTuple):
    """Input that was skipped, and why."""

    file: str
    location: str
    """For example "byte 1,234", "row group 3", "row 17", or "" for a whole file."""
    reason: str
    skipped_bytes: int = 0
    """The size of what was skipped, as far as it is known."""


class ShardPlan(NamedTuple):
    """Every shard of a corpus."""

    shards: tuple[Shard, ...]
    problems: tuple[Problem, ...]
    size: int
    """Bytes to read; of Parquet, the uncompressed bytes of the text column."""
    fingerprint: str
    """A hash that changes whenever the result of any shard could change."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the corpus: those to read, and those of files that are skipped."""
        return self.size + sum(problem.skipped_bytes for problem in self.problems)


class _Portion(NamedTuple):
    """A text file, or one row group of a Parquet file, with its size in bytes."""

    span: Span
    size: int


def plan_shards(settings: Settings) -> ShardPlan:
    """Divide the corpus of a survey into shards.

    Args:
        settings: The settings of the survey.

    Returns:
        The shards, and a problem for each file that is skipped.

    Raises:
        SettingError: There is nothing to read, a file cannot be accessed, or `shard_bytes` would give too many shards.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, size in (("a.txt", 10), ("b.txt", 10), ("c.txt", 250)):
    ...         _ = Path(folder, name).write_bytes(b"x" * size)
    ...     plan = plan_shards(Settings(model="", sources=(folder,), shard_bytes=100))
    >>> [[(span.start, span.stop) for span in shard.spans] for shard in plan.shards]
    [[(0, 10), (0, 10), (0, 125)], [(125, 250)]]
    """
    sources = list_files(settings.sources)
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
            f"survey: nothing to read in {len(problems):,} files; the first, {first.file}, {first.reason}"
        )
    shard_bytes = settings.shard_bytes or default_shard_bytes(size)
    if size // shard_bytes > MAX_SHARDS:
        raise SettingError(
            f"survey: shard_bytes {shard_bytes:,} would divide {size:,} bytes into more than {MAX_SHARDS:,} shards; "
            f"use at least {-(-size // MAX_SHARDS):,}"
        )
    groups = _pack_into_shards(_split_large_files(portions, shard_bytes), shard_bytes)
    shards = tuple(Shard(number, spans) for number, spans in enumerate(groups))
    return ShardPlan(shards, tuple(problems), size, _fingerprint(settings, sources, shards))


def default_shard_bytes(size: int) -> int:
    """The size of a shard of a corpus, if the settings do not have one.

    >>> [default_shard_bytes(size) // 2**10 for size in (2**20, 2**30, 2**40)]
    [64, 256, 1024]
    """
    bounded = min(-(-size // DEFAULT_SHARDS), MAX_DEFAULT_SHARD_BYTES)
    return max(MIN_SHARD_BYTES, bounded, -(-size // MAX_SHARDS))


def _portions(source: CorpusFile, field: str) -> Iterator[_Portion | Problem]:
    if source.size == 0:
        yield Problem(source.url, "", "is empty")
    elif source.format == "parquet":
        yield from _row_groups(source, field)
    else:
        yield _Portion(Span(source.url, source.format, 0, source.size, source.version), source.size)


def _row_groups(source: CorpusFile, field: str) -> Iterator[_Portion | Problem]:
    """The row groups of a Parquet file, each with the uncompressed size of its text column."""
    arrow = import_extra("pyarrow")
    try:
        schema, metadata = retry_access(lambda: _read_footer(source.url), AccessError)
    except AccessError as error:
        raise SettingError(f"survey: {error}; fix this, and run the same command again") from error
    except (OSError, arrow.ArrowException, *DAMAGED_ARCHIVE) as error:
        yield Problem(source.url, "", f"is damaged or not Parquet: {error}", source.size)
        return
    if field not in schema.names:
        reason = f"has no column {field!r}; its columns are {', '.join(schema.names)}"
        yield Problem(source.url, "", reason, source.size)
        return
    dtype = schema.field(field).type
    if not (arrow.types.is_string(dtype) or arrow.types.is_large_string(dtype)):
        yield Problem(source.url, "", f"has {dtype} in its column {field!r}, not strings", source.size)
        return
    if metadata.num_rows == 0:
        yield Problem(source.url, "", "has no rows")
        return
    for group in range(metadata.num_row_groups):
        span = Span(source.url, source.format, group, group + 1, source.version)
        yield _Portion(span, column_bytes(metadata, group, field))


def _read_footer(url: str) -> tuple[Any, Any]:
    """The schema and the metadata of a Parquet file."""
    parquet = import_extra("pyarrow.parquet")
    with open_file(url) as stream, parquet.ParquetFile(stream) as file:
        return file.schema_arrow, file.metadata


def column_bytes(metadata: Any, group: int, field: str) -> int:
    """The uncompressed size of a column of a Parquet row group."""
    leaf = next(at for at in range(metadata.num_columns) if metadata.schema.column(at).path == field)
    return metadata.row_group(group).column(leaf).total_uncompressed_size


def _split_large_files(portions: Iterable[_Portion], shard_bytes: int) -> Iterator[_Portion]:
    """Split files of twice `shard_bytes` or more into equal parts of at least that size."""
    for portion in portions:
        span, size = portion
        parts = 1 if span.format == "parquet" else max(1, size // shard_bytes)
        for part in range(parts):
            start, stop = size * part // parts, size * (part + 1) // parts
            yield portion if parts == 1 else _Portion(span._replace(start=start, stop=stop), stop - start)


def _pack_into_shards(portions: Iterable[_Portion], shard_bytes: int) -> Iterator[tuple[Span, ...]]:
    """The spans of each shard: portions in order, until a shard has `shard_bytes` bytes."""
    spans, size = list[Span](), 0
    for portion in portions:
        span = portion.span
        if spans and spans[-1].file == span.file and spans[-1].stop == span.start:
            spans[-1] = spans[-1]._replace(stop=span.stop)
        else:
            spans.append(span)
        size += portion.size
        if size >= shard_bytes:
            yield tuple(spans)
            spans, size = [], 0
    if spans:
        yield tuple(spans)


def _fingerprint(settings: Settings, sources: list[CorpusFile], shards: tuple[Shard, ...]) -> str:
    """A hash of files, shards and settings, without how the user wrote the sources and without a default size."""
    left_out = ("sources", "shard_bytes", "max_skipped")
    chosen = {name: value for name, value in asdict(settings).items() if name not in left_out}
    return hashlib.sha256(json.dumps([chosen, sources, shards]).encode("utf-8")).hexdigest()
