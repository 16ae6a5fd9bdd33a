"""`ArchiveWriter`: responses and arrays in one file, at offsets that an index lists.

In: response bodies, compressed one by one, and arrays, as they are. Out: the file under its final name, and its index.
Equal responses are stored once. Does not know: what is stored. Memory: one response or array.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.atomic_files import write_atomically

LEVEL = 6
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
"""The dtypes of arrays that a browser can read, and their names in an index."""

Range = tuple[int, int]  # offset and number of bytes


class StoredFile(NamedTuple):
    """A finished file of a site."""

    name: str
    num_bytes: int
    sha256: str
    contents: dict[str, Any]
    """The index of an archive."""


class ArchiveWriter:
    """Writes one archive; `finish` gives it its name.

    Args:
        folder: The folder of the site.
        name: The path of the archive in it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._name = folder / name, name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._file: BinaryIO = self._unfinished.open("wb")
        self._digest = hashlib.sha256()
        self._responses: dict[str, Range | None] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._known: dict[bytes, Range] = {}

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def add_response(self, path: str, body: bytes | None) -> None:
        """Add a response by the path that a browser requests; None is a response without content."""
        if body is None:
            self._responses[path] = None
            return
        digest = hashlib.blake2b(body, digest_size=16).digest()
        if digest not in self._known:
            self._known[digest] = self._write(gzip.compress(body, LEVEL, mtime=0))
        self._responses[path] = self._known[digest]

    def add_array(self, name: str, values: Tensor | NDArray[numpy.float32] | NDArray[numpy.uint32]) -> None:
        """Add an array (rows, ...), of which a browser reads some rows."""
        if isinstance(values, Tensor):
            dtype, plain = DTYPES[values.dtype], values.detach().cpu().contiguous()
            raw = plain.view(torch.uint8).numpy() if plain.numel() else numpy.empty(0, numpy.uint8)
        else:
            dtype, raw = {"f": "f32", "u": "u32"}[values.dtype.kind], numpy.ascontiguousarray(values)
        width = int(numpy.prod(values.shape[1:]))
        offset, _ = self._write(raw.tobytes())
        self._arrays[name] = {"offset": offset, "dtype": dtype, "rows": values.shape[0], "width": width}

    def finish(self) -> StoredFile:
        """Flush the file to disk, rename it, and return its index."""
        self._file.flush()
        os.fsync(self._file.fileno())
        num_bytes = self._file.tell()
        self._file.close()
        self._unfinished.replace(self._path)
        index = {"file": self._name, "responses": self._responses, "arrays": self._arrays}
        return StoredFile(self._name, num_bytes, self._digest.hexdigest(), index)

    def _write(self, content: bytes) -> Range:
        offset = self._file.tell()
        self._file.write(content)
        self._digest.update(content)
        return offset, len(content)


def store_file(folder: Path, name: str, content: bytes) -> StoredFile:
    """Write a file that is not an archive, which has no index."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, content)
    return StoredFile(name, len(content), hashlib.sha256(content).hexdigest(), {})
