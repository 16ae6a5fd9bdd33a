"""Partial results on disk, written atomically, with the same bytes for the same content.

A file has a magic line, the SHA-256 of the rest, and the rest, compressed: a JSON header and the arrays. Integers use
the smallest dtype that fits. Arrays are stored as byte planes (all first bytes, then all second bytes), which compress
better. In: a partial result, or a path. Out: the other.
Does not know: which shard is where. Memory: the file and its partial result.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.atomic_files import write_atomically
from attnscope.errors import CheckpointError
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.bins import RELATIVE_ACCURACY, STATISTICS
from attnscope.survey.partials.examples import Examples, PassageSample, StoredPassage, TopPassages
from attnscope.survey.partials.moments import Moments
from attnscope.survey.partials.partial import PartialResult, Problems

MAGIC = b"attnscope survey partial 1\n"
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 8
REMEDY = "delete it and run the survey again, which reads its shard again"
COMPRESSION_LEVEL = 1  # the highest takes five times as long for 5 % less


def save_partial(partial: PartialResult, path: Path) -> None:
    """Write a partial result; a process that is killed meanwhile leaves no incomplete file under this name."""
    content = zlib.compress(_encode(partial), COMPRESSION_LEVEL)
    write_atomically(path, MAGIC + hashlib.sha256(content).digest() + content)


def load_partial(path: Path) -> PartialResult:
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
    try:
        return _decode(path, zlib.decompress(rest))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, zlib.error) as error:
        raise _not_a_partial(path, error) from error
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise _not_a_partial(path, error) from error


def _not_a_partial(path: Path, error: Exception) -> CheckpointError:
    """The error for a file whose checksum is right, but which AttnScope did not write."""
    return CheckpointError(f"{path} is not a partial result ({type(error).__name__}: {str(error)[:100]}); {REMEDY}")


def _encode(partial: PartialResult) -> bytes:
    arrays = {name: _shrink_integers(array) for name, array in _arrays(partial).items()}
    header = {
        "statistics": _statistics(),
        "layers": partial.layers,
        "heads": partial.heads,
        "tokens": partial.tokens,
        "passages": partial.passages,
        "documents": partial.documents,
        "problems": partial.problems.first,
        "num_problems": partial.problems.count,
        "digests": sorted(partial.digests.items()),
        "examples": [(number, *example) for number, example in sorted(partial.examples.passages.items())],
        "arrays": [(name, array.dtype.str, array.shape) for name, array in arrays.items()],
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *map(_byte_planes, arrays.values())])


def _decode(path: Path, content: bytes) -> PartialResult:
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(content[LENGTH_BYTES:start])
    if header["statistics"] != _statistics():
        raise CheckpointError(f"{path} has other statistics or bins than this version of AttnScope; {REMEDY}")
    empty = PartialResult.empty(header["layers"], header["heads"])
    arrays = {}
    for (name, dtype, shape), wanted in zip(header["arrays"], _arrays(empty).values(), strict=True):
        size, width = math.prod(shape), np.dtype(dtype).itemsize
        planes = np.frombuffer(content, np.uint8, size * width, start).reshape(width, size)
        arrays[name] = np.ascontiguousarray(planes.T).view(dtype).reshape(shape).astype(wanted.dtype)
        start += size * width
    passages = {
        number: StoredPassage(file, begin, offset, tuple(ids), text, tuple(ends))
        for number, file, begin, offset, ids, text, ends in header["examples"]
    }
    return PartialResult(
        layers=empty.layers,
        heads=empty.heads,
        moments=Moments(*(arrays[f"moments.{name}"] for name in Moments._fields)),
        examples=Examples(
            TopPassages(*(arrays[f"top.{name}"] for name in TopPassages._fields)),
            PassageSample(*(arrays[f"sample.{name}"] for name in PassageSample._fields)),
            passages,
        ),
        tokens=header["tokens"],
        passages=header["passages"],
        documents=header["documents"],
        problems=Problems(tuple(Problem(*each) for each in header["problems"]), header["num_problems"]),
        digests=dict(header["digests"]),
    )


def _arrays(partial: PartialResult) -> dict[str, NDArray]:
    groups = {"moments": partial.moments, "top": partial.examples.top, "sample": partial.examples.sample}
    return {f"{group}.{name}": array for group, its in groups.items() for name, array in its._asdict().items()}


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
