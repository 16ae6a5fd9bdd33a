"""Reads GGUF files: metadata, a list of tensors, and their data, which may be quantized.

In: a path. Out: the metadata as Python values, and a `StoredTensor` for each tensor.
Does not know: the meaning of the metadata, models.
Memory: the metadata; tensor data is memory-mapped and dequantized by rows. All counts and lengths in the header are
checked against the size of the file before anything is allocated. The reader of the gguf package does not do this.
"""

from __future__ import annotations

import mmap
import struct
from contextlib import ExitStack
from enum import IntEnum
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.safetensors_files import StoredTensor
from attnscope.models.json_fields import short_repr

VERSIONS = (2, 3)
MAX_METADATA, MAX_ELEMENTS, MAX_TENSORS, MAX_AXES = 2**16, 2**24, 2**20, 4
"""Limits far above any model; for example, the largest vocabularies have 2**18 tokens."""

STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""The numeric types of metadata."""


class Header(NamedTuple):
    """The header of a file."""

    metadata: dict[str, object]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]
    """The shape, the type and the offset of each tensor."""
    start: int
    """The start of the tensor data."""


def read_metadata(path: str | Path) -> dict[str, object]:
    """Return the metadata of a GGUF file as numbers, strings, booleans and lists of them.

    Args:
        path: The GGUF file.
    """
    with ExitStack() as files:
        return _header(Path(path), _map_file(Path(path), files)).metadata


def open_gguf(path: Path, files: ExitStack) -> tuple[dict[str, object], dict[str, StoredTensor]]:
    """Return the metadata and all tensors of a file, which stays mapped as long as `files` is open."""
    content = _map_file(path, files)
    header = _header(path, content)
    found, places = {}, []
    for name, (shape, kind, offset) in header.tensors.items():
        stored = _locate_tensor(path, content, name, shape, kind, header.start + offset)
        places.append((offset, stored.num_bytes, name))
        found[name] = stored
    _check_overlaps(path, places)
    return header.metadata, found


class _Cursor:
    """Reads values one after the other, and raises at the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap):
        self.path, self.content, self.place, self.elements = path, content, 0, 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self.content) - self.place:
            raise CheckpointError(f"{self.path} ends within its header; download the file again")
        self.place += num_bytes
        return self.content[self.place - num_bytes : self.place]

    def whole(self, code: str) -> int:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, most: int) -> int:
        number = self.whole("Q")
        if number > most:
            raise CheckpointError(
                f"{self.path}: expected at most {most:,} {what}, got {number:,}; the file is damaged, download it again"
            )
        return number

    def text(self) -> str:
        content = self.take(self.whole("Q"))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path} has a string in its header that is not valid UTF-8: {error}") from error

    def value(self, kind: int) -> object:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        return self.numbers(kind, 1)[0]

    def array(self) -> list[object]:
        kind = self.whole("I")
        number = self.count("elements in a list", MAX_ELEMENTS - self.elements)
        self.elements += number
        return [self.text() for _ in range(number)] if kind == STRING else self.numbers(kind, number)

    def numbers(self, kind: int, number: int) -> list:
        if kind not in SCALARS:
            raise CheckpointError(f"{self.path} has metadata of the unknown type {kind}")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(number * dtype.itemsize), dtype).tolist()


def _map_file(path: Path, files: ExitStack) -> mmap.mmap:
    if not path.is_file():
        raise CheckpointError(f"expected a GGUF file, got {path}, which is not a file")
    try:
        file = files.enter_context(path.open("rb"))
        # Copy on write: torch requires writable memory, and the file must not change.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _header(path: Path, content: mmap.mmap) -> Header:
    cursor = _Cursor(path, content)
    if content[:4] != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: expected b'GGUF' at its start, got {content[:4]!r}")
    cursor.take(4)
    version = cursor.whole("I")
    if version & 0xFFFF == 0:
        raise CheckpointError(f"{path} is a big-endian GGUF file; convert it with gguf-convert-endian")
    if version not in VERSIONS:
        raise CheckpointError(f"{path}: expected GGUF version 2 or 3, got {version}; convert the model again")
    num_tensors = cursor.count("tensors", MAX_TENSORS)
    metadata: dict[str, object] = {}
    for _ in range(cursor.count("metadata", MAX_METADATA)):
        name = cursor.text()
        if name in metadata:
            raise CheckpointError(f"{path} has the metadata {short_repr(name)} twice")
        metadata[name] = cursor.value(cursor.whole("I"))
    tensors = {}
    for _ in range(num_tensors):
        name, num_axes = cursor.text(), cursor.whole("I")
        if name in tensors or num_axes > MAX_AXES:
            raise CheckpointError(f"{path} has the tensor {short_repr(name)} twice, or with {num_axes} axes")
        shape = tuple(cursor.whole("Q") for _ in range(num_axes))[::-1]  # GGUF lists axes from the last one
        tensors[name] = (shape, cursor.whole("I"), cursor.whole("Q"))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: expected a power of two as general.alignment, got {short_repr(alignment)}")
    return Header(metadata, tensors, -(-cursor.place // alignment) * alignment)


def _locate_tensor(
    path: Path, content: mmap.mmap, name: str, shape: tuple[int, ...], number: int, place: int
) -> StoredTensor:
    gguf = import_extra("gguf")
    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: {short_repr(name)} has the unknown type {number}") from error
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise CheckpointError(f"{path}: {short_repr(name)} has shape {shape}; expected rows of blocks of {block}")
    num_bytes = prod(shape) // block * block_bytes
    if place + num_bytes > len(content):
        raise CheckpointError(f"{path}: {short_repr(name)} extends past the end of the file; download the file again")
    rows = partial(_rows, content, kind, place, shape[-1] // block * block_bytes, len(shape) == 1)
    return StoredTensor(name, shape, kind.name, torch.float32 if _can_dequantize(kind) else None, num_bytes, rows)


def _rows(
    content: mmap.mmap, kind: IntEnum, place: int, row_bytes: int, is_one_row: bool, start: int, stop: int
) -> Tensor:
    """Return rows `start` to `stop` - 1 of a matrix, or these elements of a vector, dequantized."""
    if is_one_row:
        return _rows(content, kind, place, row_bytes, False, 0, 1)[0, start:stop]
    num_rows = stop - start
    stored = np.frombuffer(content, np.uint8, num_rows * row_bytes, place + start * row_bytes)
    with np.errstate(all="ignore"):  # a damaged block may hold any number
        numbers = import_extra("gguf.quants").dequantize(stored.reshape(num_rows, row_bytes), kind)
    return torch.from_numpy(numbers)


@cache
def _can_dequantize(kind: IntEnum) -> bool:
    """Return whether the gguf package can dequantize this type."""
    block_bytes = import_extra("gguf").GGML_QUANT_SIZES[kind][1]
    try:
        # Blocks of some types have a divisor, which is zero here.
        with np.errstate(all="ignore"):
            import_extra("gguf.quants").dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _check_overlaps(path: Path, places: list[tuple[int, int, str]]) -> None:
    """Raise if tensors share bytes: otherwise a small file could expand to any amount of memory."""
    end = 0
    for offset, num_bytes, name in sorted(places):
        if offset < end:
            raise CheckpointError(f"{path}: {short_repr(name)} overlaps another tensor; download the file again")
        end = offset + num_bytes
