"""Partials in files: whole or not there at all, and the same bytes for the same content.

A file has a line that says what it is, the SHA-256 of the rest, and the rest, compressed: a header in JSON and the
arrays, whole numbers in as few bytes as they need, and of all numbers the first bytes, then the second, and so on, for
first bytes are much alike. In: a partial, or a path. Out: the other.
Does not know: which shard is where. Memory: the file and its partial.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import CheckpointError
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.tally.examples import Example, Examples, Sample, Top
from attnscope.survey.tally.moments import Moments
from attnscope.survey.tally.partial import Partial, Problems
from attnscope.survey.tally.statistics import ACCURACY, STATISTICS

KIND = b"attnscope survey part 1\n"
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 8
LEVEL = 1  # of compression: the highest takes five times as long for 5 % less


def save(partial: Partial, path: Path) -> None:
    """Write a partial; whoever is killed meanwhile leaves nothing under this name."""
    content = zlib.compress(_packed(partial), LEVEL)
    write_whole(path, KIND + hashlib.sha256(content).digest() + content)


def load(path: Path) -> Partial:
    """The partial in a file, unless that is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if not content.startswith(KIND):
        raise CheckpointError(
            f"{path} is no part of a survey of this version of AttnScope, or it is damaged; delete it and run the "
            "survey again, which reads its shard anew"
        )
    digest, rest = content[len(KIND) :][:DIGEST_BYTES], content[len(KIND) + DIGEST_BYTES :]
    if hashlib.sha256(rest).digest() != digest:
        raise CheckpointError(
            f"{path} is damaged: its {len(content):,} bytes are not those that were written; delete it and run the "
            "survey again, which reads its shard anew"
        )
    return _unpacked(path, zlib.decompress(rest))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, wait until it is on the disk, and give it its own."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """Wait until the names in a folder are on the disk too; not every system has folders that can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _packed(partial: Partial) -> bytes:
    arrays = {name: _narrowed(array) for name, array in _arrays(partial).items()}
    header = {
        "statistics": _statistics(),
        "layers": partial.layers,
        "heads": partial.heads,
        "tokens": partial.tokens,
        "passages": partial.passages,
        "documents": partial.documents,
        "problems": partial.problems.first,
        "number of problems": partial.problems.number,
        "digests": sorted(partial.digests.items()),
        "examples": [(number, *example) for number, example in sorted(partial.examples.passages.items())],
        "arrays": [(name, array.dtype.str, array.shape) for name, array in arrays.items()],
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *map(_planes, arrays.values())])


def _unpacked(path: Path, content: bytes) -> Partial:
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(content[LENGTH_BYTES:start])
    if header["statistics"] != _statistics():
        raise CheckpointError(
            f"{path} counts other statistics, or in other bins, than this version of AttnScope; delete it and run the "
            "survey again, which reads its shard anew"
        )
    empty = Partial.empty(header["layers"], header["heads"])
    arrays = {}
    for (name, dtype, shape), wanted in zip(header["arrays"], _arrays(empty).values(), strict=True):
        size, width = math.prod(shape), np.dtype(dtype).itemsize
        planes = np.frombuffer(content, np.uint8, size * width, start).reshape(width, size)
        arrays[name] = np.ascontiguousarray(planes.T).view(dtype).reshape(shape).astype(wanted.dtype)
        start += size * width
    passages = {
        number: Example(file, begin, offset, tuple(ids), text, tuple(ends))
        for number, file, begin, offset, ids, text, ends in header["examples"]
    }
    return Partial(
        layers=empty.layers,
        heads=empty.heads,
        moments=Moments(*(arrays[f"moments.{name}"] for name in Moments._fields)),
        examples=Examples(
            Top(*(arrays[f"top.{name}"] for name in Top._fields)),
            Sample(*(arrays[f"sample.{name}"] for name in Sample._fields)),
            passages,
        ),
        tokens=header["tokens"],
        passages=header["passages"],
        documents=header["documents"],
        problems=Problems(tuple(Problem(*each) for each in header["problems"]), header["number of problems"]),
        digests=dict(header["digests"]),
    )


def _arrays(partial: Partial) -> dict[str, NDArray]:
    groups = {"moments": partial.moments, "top": partial.examples.top, "sample": partial.examples.sample}
    return {f"{group}.{name}": array for group, its in groups.items() for name, array in its._asdict().items()}


def _narrowed(array: NDArray) -> NDArray:
    """Whole numbers in the fewest bytes that hold them all: most bins have none, and none of them many."""
    if array.dtype != np.int64 or not array.size:
        return array
    widest = np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.astype(widest.newbyteorder("<"))


def _planes(array: NDArray) -> bytes:
    """The first bytes of all numbers, then the second, and so on."""
    return np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8).T.tobytes()


def _statistics() -> list[Any]:
    """What the columns and bins of the arrays mean, as JSON gives it back."""
    return [ACCURACY, *([name, *asdict(bins).values()] for name, bins in STATISTICS.items())]
