"""The GGUF format: a list of metadata, a list of tensors, and their numbers, which may be quantized.

In: a path. Out: the metadata as Python values, and a `StoredTensor` for each tensor.
Does not know: what the metadata mean, models.
Memory: the metadata; numbers are mapped, and dequantized by rows. What a file claims about its own counts and lengths
is compared with the bytes it has before anything is made of it; the reader of the gguf package trusts those claims.
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
"""Far more than any model has: the largest vocabularies have 2**18 tokens."""

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
"""The types of metadata that are numbers."""


class Header(NamedTuple):
    """What a file says before its numbers begin."""

    metadata: dict[str, object]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]
    """The shape, the type and the place of each tensor."""
    start: int
    """Where the numbers begin."""


def read_metadata(path: str | Path) -> dict[str, object]:
    """The metadata of a GGUF file as numbers, texts, flags and lists of them."""
    with ExitStack() as files:
        return _header(Path(path), _mapped(Path(path), files)).metadata


def open_gguf(path: Path, files: ExitStack) -> tuple[dict[str, object], dict[str, StoredTensor]]:
    """The metadata and all tensors of a file, which stays mapped as long as `files` is open."""
    content = _mapped(path, files)
    header = _header(path, content)
    found, places = {}, []
    for name, (shape, kind, offset) in header.tensors.items():
        stored = _stored(path, content, name, shape, kind, header.start + offset)
        places.append((offset, stored.num_bytes, name))
        found[name] = stored
    _refuse_overlaps(path, places)
    return header.metadata, found


class _Cursor:
    """A place in a file that moves on as things are read, and never past the end."""

    def __init__(self, path: Path, content: mmap.mmap):
        self.path, self.content, self.place, self.elements = path, content, 0, 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self.content) - self.place:
            raise CheckpointError(f"{self.path} ends in the middle of its header; it is damaged: fetch it again")
        self.place += num_bytes
        return self.content[self.place - num_bytes : self.place]

    def whole(self, code: str) -> int:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, most: int) -> int:
        number = self.whole("Q")
        if number > most:
            raise CheckpointError(f"{self.path} claims to have {number:,} {what}; at most {most:,} are understood")
        return number

    def text(self) -> str:
        content = self.take(self.whole("Q"))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path} has a text in its header that is not UTF-8: {error}") from error

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
            raise CheckpointError(f"{self.path} has metadata of type {kind}, which is not understood")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(number * dtype.itemsize), dtype).tolist()


def _mapped(path: Path, files: ExitStack) -> mmap.mmap:
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file")
    try:
        file = files.enter_context(path.open("rb"))
        # Copy on write: torch wants memory that it could write to, and the file must not change.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _header(path: Path, content: mmap.mmap) -> Header:
    cursor = _Cursor(path, content)
    if content[:4] != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it begins with {content[:4]!r}")
    cursor.take(4)
    version = cursor.whole("I")
    if version & 0xFFFF == 0:
        raise CheckpointError(f"{path} is a big-endian GGUF file; convert it with gguf-convert-endian")
    if version not in VERSIONS:
        raise CheckpointError(f"{path} is GGUF version {version}; versions 2 and 3 are understood")
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
        shape = tuple(cursor.whole("Q") for _ in range(num_axes))[::-1]  # the file counts axes from the last one
        tensors[name] = (shape, cursor.whole("I"), cursor.whole("Q"))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise CheckpointError(f"{path} has general.alignment {short_repr(alignment)}, which is no power of two")
    return Header(metadata, tensors, -(-cursor.place // alignment) * alignment)


def _stored(path: Path, content: mmap.mmap, name: str, shape: tuple[int, ...], number: int, place: int) -> StoredTensor:
    gguf = import_extra("gguf")
    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: {short_repr(name)} has the type {number}, which is not understood") from error
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise CheckpointError(f"{path}: {short_repr(name)} has shape {shape}, which is not made of blocks of {block}")
    num_bytes = prod(shape) // block * block_bytes
    if place + num_bytes > len(content):
        raise CheckpointError(f"{path}: {short_repr(name)} lies outside the file, which is damaged or cut short")
    rows = partial(_rows, content, kind, place, shape[-1] // block * block_bytes, len(shape) == 1)
    return StoredTensor(name, shape, kind.name, torch.float32 if _is_understood(kind) else None, num_bytes, rows)


def _rows(
    content: mmap.mmap, kind: IntEnum, place: int, row_bytes: int, is_one_row: bool, start: int, stop: int
) -> Tensor:
    """Some rows of a matrix, or some numbers of a vector, which is one row, dequantized."""
    if is_one_row:
        return _rows(content, kind, place, row_bytes, False, 0, 1)[0, start:stop]
    num_rows = stop - start
    stored = np.frombuffer(content, np.uint8, num_rows * row_bytes, place + start * row_bytes)
    with np.errstate(all="ignore"):  # a damaged block may hold any number
        numbers = import_extra("gguf.quants").dequantize(stored.reshape(num_rows, row_bytes), kind)
    return torch.from_numpy(numbers)


@cache
def _is_understood(kind: IntEnum) -> bool:
    """Whether the gguf package turns one empty block of this type into numbers."""
    block_bytes = import_extra("gguf").GGML_QUANT_SIZES[kind][1]
    try:
        # Some blocks hold a divisor, which is zero here.
        with np.errstate(all="ignore"):
            import_extra("gguf.quants").dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _refuse_overlaps(path: Path, places: list[tuple[int, int, str]]) -> None:
    """Tensors that share bytes would let a small file ask for any amount of memory."""
    end = 0
    for offset, num_bytes, name in sorted(places):
        if offset < end:
            raise CheckpointError(f"{path}: {short_repr(name)} overlaps another tensor; the file is damaged")
        end = offset + num_bytes
