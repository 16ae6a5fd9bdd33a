"""Writes a safetensors file as a stream, and computes a hash or checksum of it on the way.

In: tensors that may be anywhere, have any strides and any dtype, or are made when they are written. Out: the file, and
its size. Does not know: what the tensors mean. Memory: one tensor that is made, and two pieces of one that is copied.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that are written, by their names in safetensors."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

ALIGNMENT = 8
PIECE_BYTES = 2**22  # written by this thread while another one hashes it


class TensorToWrite(NamedTuple):
    """A tensor as it is in the file, and how to get its numbers, which may be of another dtype."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Digest(Protocol):
    """A hash or checksum of a stream, as those of hashlib."""

    def update(self, content: memoryview, /) -> None:
        """Add what follows in the stream."""
        ...


def to_file_order(tensors: Iterable[TensorToWrite]) -> list[TensorToWrite]:
    """Sort tensors as they follow each other in a file: wide dtypes first, which keeps all of them aligned."""
    return sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))


def encode_header(tensors: Sequence[TensorToWrite], metadata: Mapping[str, str]) -> bytes:
    """The header of a file with tensors in this order."""
    places: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for tensor in tensors:
        stop = start + tensor.num_bytes
        places[tensor.name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(places, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_stream(path: Path, header: bytes, tensors: Iterable[TensorToWrite], digest: Digest) -> int:
    """Write a new file: a header, and the tensors in the order it was made for; return its size in bytes."""
    total = 0
    hashed: Future[None] | None = None
    with path.open("xb") as file, ThreadPoolExecutor(1) as hasher:
        for piece in _pieces(header, tensors):
            if hashed is not None:
                hashed.result()
            hashed = hasher.submit(digest.update, piece)
            file.write(piece)
            total += len(piece)
        if hashed is not None:
            hashed.result()
    return total


def _pieces(header: bytes, tensors: Iterable[TensorToWrite]) -> Iterator[memoryview]:
    yield memoryview(header)
    # One is filled while the other is hashed. New copies each time would leave holes in the heap.
    buffers = itertools.cycle(torch.empty(2, PIECE_BYTES, dtype=torch.uint8))
    for tensor in tensors:
        for part in _contiguous_parts(tensor.read().detach(), tensor.dtype, buffers):
            content = part.reshape(-1).view(torch.uint8).numpy().data
            for start in range(0, len(content), PIECE_BYTES):
                yield content[start : start + PIECE_BYTES]


def _contiguous_parts(tensor: Tensor, dtype: torch.dtype, buffers: Iterator[Tensor]) -> Iterator[Tensor]:
    """The tensor as parts in its order: itself if nothing changes, else small copies in one buffer after the other."""
    if tensor.is_contiguous() and tensor.device.type == "cpu" and tensor.dtype == dtype:
        yield tensor
        return
    if tensor.dim() == 0:
        yield tensor.to("cpu", dtype)
        return
    row_bytes = tensor[:1].numel() * dtype.itemsize
    for part in tensor.split(max(1, PIECE_BYTES // max(row_bytes, 1))):
        num_bytes = part.numel() * dtype.itemsize
        if num_bytes > PIECE_BYTES and part.dim() > 1:
            yield from _contiguous_parts(part[0], dtype, buffers)  # so large that it is alone
        else:
            yield next(buffers)[:num_bytes].view(dtype).view(part.shape).copy_(part)
