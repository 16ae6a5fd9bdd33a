"""Partial results on disk, written atomically, with the same bytes for the same content.

A file has a magic line, the SHA-256 of the rest, and the rest, compressed: a JSON header and the arrays. Integers use
the smallest dtype that fits. Arrays are stored as byte planes (all first bytes, then all second bytes), which compress
better. In: a partial result, or a path. Out: the other; a file with invalid content is a `CheckpointError`.
Does not know: which shard is where. Memory: the file and its partial result.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import CheckpointError
from attnscope.models.json_fields import Fields
from attnscope.models.json_files import parse_json
from attnscope.stores.paths import AnyPath, write_file
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.bins import NUM_BINS, RELATIVE_ACCURACY, STATISTICS
from attnscope.survey.partials.examples import (
    NO_PASSAGE,
    SAMPLE_SIZE,
    Examples,
    PassageSample,
    StoredPassage,
    TopPassages,
)
from attnscope.survey.partials.moments import Moments
from attnscope.survey.partials.partial import MAX_PROBLEMS, PartialResult, Problems

MAGIC = b"attnscope survey partial 2\n"
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 8
REMEDY = "delete it and run the survey again, which reads its shard again"
COMPRESSION_LEVEL = 1  # the highest takes five times as long for 5 % less
MIN_LIMIT, MAX_RATIO = 2**28, 64  # of the decompressed size: a shard with few passages is mostly empty bins
MAX_INT32 = 2**31 - 1
TOKEN_FIELDS = ("ids", "ends")
INTEGERS = {dtype: dtype for dtype in ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8")}


def save_partial(partial: PartialResult, path: AnyPath) -> None:
    """Write a partial result; a process that is killed meanwhile leaves no incomplete file under this name."""
    content = zlib.compress(_encode(partial), COMPRESSION_LEVEL)
    write_file(path, MAGIC + hashlib.sha256(content).digest() + content)


def load_partial(path: AnyPath) -> PartialResult:
    """Read a partial result.

    Raises:
        CheckpointError: The file is missing, damaged, or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if not content.startswith(MAGIC):
        raise CheckpointError(f"{path} is damaged, or not a partial result of this version of AttnScope; {REMEDY}")
    digest, rest = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
    if hashlib.sha256(rest).digest() != digest:
        raise CheckpointError(f"{path} is damaged: the checksum of its {len(content):,} bytes does not match; {REMEDY}")
    return _decode(path, _decompress(path, rest))


def _decompress(path: AnyPath, content: bytes) -> bytes:
    """Decompress the content of a file, up to a limit that grows with its size."""
    limit = MIN_LIMIT + MAX_RATIO * len(content)
    decompressor = zlib.decompressobj()
    try:
        found = decompressor.decompress(content, limit)
    except zlib.error as error:
        raise CheckpointError(f"{path} is damaged: {error}; {REMEDY}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise CheckpointError(f"{path} is damaged: its compressed data does not end where it should; {REMEDY}")
    return found


def _encode(partial: PartialResult) -> bytes:
    passages = dict(sorted(partial.examples.passages.items()))
    arrays = {name: _shrink_integers(array) for name, array in _arrays(partial, passages.values()).items()}
    header = {
        "statistics": _statistics(),
        "layers": partial.layers,
        "heads": partial.heads,
        "tokens": partial.tokens,
        "passages": partial.passages,
        "documents": partial.documents,
        "problems": partial.problems.first,
        "num_problems": partial.problems.count,
        "skipped_bytes": partial.problems.skipped_bytes,
        "digests": sorted(partial.digests.items()),
        "sample_size": len(partial.examples.sample.passages),
        "examples": [
            (number, example.file, example.start, example.offset, len(example.ids), example.text)
            for number, example in passages.items()
        ],
        "dtypes": {name: array.dtype.str for name, array in arrays.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *map(_byte_planes, arrays.values())])


def _decode(path: AnyPath, content: bytes) -> PartialResult:
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header = parse_json(content[LENGTH_BYTES:start].decode("ascii", "replace"), path, advice=REMEDY)
    fields = Fields(header, source=str(path), advice=REMEDY)
    if fields.take("statistics") != _statistics():
        raise CheckpointError(f"{path} has other statistics or bins than this version of AttnScope; {REMEDY}")
    layers, heads = fields.strings("layers"), fields.integers("heads", maximum=MAX_INT32)
    if len(layers) != len(heads) or len(heads) * NUM_BINS > len(content):
        raise fields.invalid("heads", heads, f"one for each of {len(layers):,} layers, and their histograms")
    empty, sample_size = PartialResult.empty(layers, heads), fields.integer("sample_size", maximum=SAMPLE_SIZE)
    rows = [_read_example(fields, row) for row in fields.array("examples")]
    shapes = {name: (array.dtype, array.shape) for name, array in _arrays(empty, ()).items()}
    for name, (dtype, shape) in shapes.items():
        if name.startswith("sample."):
            shapes[name] = dtype, (sample_size, *shape[1:])
        elif name.startswith("examples."):
            shapes[name] = dtype, (sum(row.length for row in rows),)
    arrays = _read_arrays(fields, content, start, shapes)
    listed = fields.array("problems", maximum=MAX_PROBLEMS)
    problems = tuple(Problem(*_read_row(fields, "problems", row, str, str, str, int)) for row in listed)
    digests = [_read_row(fields, "digests", row, int, str) for row in fields.array("digests")]
    return PartialResult(
        layers=empty.layers,
        heads=empty.heads,
        moments=Moments(*(arrays[f"moments.{name}"] for name in Moments._fields)),
        examples=_read_examples(fields, rows, arrays),
        tokens=fields.integer("tokens"),
        passages=fields.integer("passages"),
        documents=fields.integer("documents"),
        problems=Problems(problems, fields.integer("num_problems"), fields.integer("skipped_bytes")),
        digests={row[0]: row[1] for row in digests},
    )


def _read_arrays(
    fields: Fields, content: bytes, start: int, shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
) -> dict[str, NDArray]:
    """The arrays behind the header; all of the content has to be used."""
    found, dtypes = dict[str, NDArray](), fields.inner("dtypes")
    for name, (wanted, shape) in shapes.items():
        dtype = np.dtype(dtypes.choice(name, INTEGERS if wanted == np.int64 else {wanted.str: wanted.str}))
        size, width = math.prod(shape), dtype.itemsize
        if start + size * width > len(content):
            raise fields.invalid(name, dtype.str, f"an array {shape} within the file")
        planes = np.frombuffer(content, np.uint8, size * width, start).reshape(width, size)
        found[name] = np.ascontiguousarray(planes.T).view(dtype).reshape(shape).astype(wanted)
        start += size * width
    if start != len(content):
        raise fields.invalid("dtypes", len(content) - start, "no bytes after the arrays")
    return found


class _ExampleRow(NamedTuple):
    """A passage in the header; its tokens are in arrays."""

    number: int
    file: str
    start: int
    offset: int
    length: int
    text: str


def _read_example(fields: Fields, row: object) -> _ExampleRow:
    found = _ExampleRow(*_read_row(fields, "examples", row, int, str, int, int, int, str))
    if min(found.number, found.start, found.offset, found.length) < 0:
        raise fields.invalid("examples", row, "no negative numbers")
    if max(found.number, found.start, found.offset) >= NO_PASSAGE or found.length > MAX_INT32:
        raise fields.invalid("examples", row, "smaller numbers")
    return found


def _read_row(fields: Fields, name: str, row: object, *types: type) -> list[Any]:
    """Check a row of a table in the header: a list of items of these types."""
    if not isinstance(row, list) or [type(item) for item in row] != list(types):
        raise fields.invalid(name, row, f"a list of {', '.join(one.__name__ for one in types)}")
    return row


def _read_examples(fields: Fields, rows: Sequence[_ExampleRow], arrays: Mapping[str, NDArray]) -> Examples:
    ids, ends = (arrays[f"examples.{name}"].tolist() for name in TOKEN_FIELDS)
    passages, start = dict[int, StoredPassage](), 0
    for number, file, begin, offset, length, text in rows:
        stop = start + length
        passages[number] = StoredPassage(file, begin, offset, tuple(ids[start:stop]), text, tuple(ends[start:stop]))
        start = stop
    top = TopPassages(*(arrays[f"top.{name}"] for name in TopPassages._fields))
    sample = PassageSample(*(arrays[f"sample.{name}"] for name in PassageSample._fields))
    try:
        return Examples.select(top, sample, passages)
    except KeyError as error:
        raise fields.invalid("examples", error.args[0], "every passage that the arrays refer to") from error


def _arrays(partial: PartialResult, passages: Collection[StoredPassage]) -> dict[str, NDArray]:
    """All arrays, in the order of the file; the last ones have the tokens of all passages, one after the other."""
    groups = {"moments": partial.moments, "top": partial.examples.top, "sample": partial.examples.sample}
    found = {f"{group}.{name}": array for group, its in groups.items() for name, array in its._asdict().items()}
    for name in TOKEN_FIELDS:
        tokens = chain.from_iterable(getattr(passage, name) for passage in passages)
        found[f"examples.{name}"] = np.fromiter(tokens, np.int64)
    return found


def _shrink_integers(array: NDArray) -> NDArray:
    """An integer array in the smallest dtype that holds all values: most bins are empty."""
    if array.dtype != np.int64 or not array.size:
        return array
    widest = np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.astype(widest.newbyteorder("<"))


def _byte_planes(array: NDArray) -> bytes:
    """All first bytes of an array, then all second bytes, and so on."""
    return np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8).T.tobytes()


def _statistics() -> list[Any]:
    """The statistics and bins that the arrays refer to, in JSON types."""
    return [RELATIVE_ACCURACY, *([name, *asdict(bins).values()] for name, bins in STATISTICS.items())]
