"""Tensors in safetensors files: written as one stream, opened as views of the memory-mapped file.

In: tensors by name, on any device and with any strides. Out: a file, with its size and hash; and memory-mapped tensors.
A damaged or malicious file raises a `TraceError`.
Does not know: what the tensors mean. Memory: a chunk of one tensor to write; the header to open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.errors import MissingExtraError, TraceError, UnsupportedError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.safetensors_files import MAX_HEADER_BYTES
from attnscope.models.checkpoint.safetensors_writer import (
    DTYPES,
    NAMES,
    PIECE_BYTES,
    TensorToWrite,
    encode_header,
    to_file_order,
    write_stream,
)
from attnscope.models.json_fields import short_repr
from attnscope.recording.files.file_check import FileCheck

MAX_AXES = 5
MAX_SIZE = 2**40  # of an axis
ROOM, ROOM_A_TENSOR = 2**14, 2**9  # bytes that a header may have


class Written(NamedTuple):
    """A file of a trace: its name in the folder, its size and its hash."""

    name: str
    num_bytes: int
    sha256: str


def write_file(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Written:
    """Write tensors to a new file, with the file name in its header, so that swapped files are detected."""
    if wrong := next((label for label, tensor in tensors.items() if tensor.dtype not in NAMES), None):
        raise UnsupportedError(f"save: {wrong} of {name} is {tensors[wrong].dtype}, which a trace on disk cannot hold")
    ordered = to_file_order(
        TensorToWrite(label, tensor.dtype, tuple(tensor.shape), partial(_itself, tensor))
        for label, tensor in tensors.items()
    )
    header = encode_header(ordered, {"format": "pt", "file": name})
    if len(header) - 8 > _most_header(len(tensors)):
        raise UnsupportedError(f"save: {len(tensors):,} tensors in {name} are more than one file of a trace can hold")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    return Written(name, write_stream(folder / name, header, ordered, digest), digest.hexdigest())


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _most_header(tensors: int) -> int:
    return min(ROOM + ROOM_A_TENSOR * tensors, MAX_HEADER_BYTES)


def open_file(folder: Path, written: Written, names: Collection[str]) -> tuple[dict[str, Tensor], FileCheck]:
    """The tensors of a file, which has to hold these and no others, and the check of its hash, to call before use."""
    path = folder / written.name
    try:
        refuse_way_out(folder, path)
        size = path.stat().st_size
        if size != written.num_bytes:
            raise TraceError(
                f"{path} has {size:,} bytes where trace.json says {written.num_bytes:,}: it is cut off or was changed; "
                "copy the folder again"
            )
        _refuse_long_header(path, len(names))
        with import_extra("safetensors").safe_open(path, framework="pt") as file:
            _check_header(path, file, written.name, names)
            found = {name: file.get_tensor(name) for name in names}
        check = FileCheck(path, written.sha256, found.values())
    except (TraceError, MemoryError, MissingExtraError):
        raise
    except Exception as error:  # the library raises its own errors, those of the system and those of torch
        raise TraceError(f"{path} is damaged or no safetensors file ({_short(error)}); copy it again") from error
    for name, tensor in found.items():
        _check_content(path, name, tensor)
    return found, check


def refuse_way_out(folder: Path, path: Path) -> None:
    """Raise unless a path is a file inside the folder after links are resolved."""
    if not path.exists():
        raise TraceError(f"{path} is missing; copy the folder again, with all its files")
    if not path.is_file():
        raise TraceError(f"{path} is not a file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise TraceError(f"{path} is a link that leads out of the folder; put the file itself there")


def _refuse_long_header(path: Path, tensors: int) -> None:
    """What the library makes of a header is several times as large, so it is not given one that is too long."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > _most_header(tensors):
        raise TraceError(
            f"{path} claims to have a header of {length:,} bytes, where {_most_header(tensors):,} are enough for its "
            f"{tensors} tensors: it is damaged or no safetensors file; copy it again"
        )


def _check_header(path: Path, file: Any, name: str, names: Collection[str]) -> None:
    place = (file.metadata() or {}).get("file")
    if place != name:
        raise TraceError(f"{path} was written as {short_repr(place)}, so it is not the file that belongs here")
    there = set(file.keys())
    if there != set(names):
        differing = sorted(there ^ set(names))[:3]
        raise TraceError(
            f"{path} does not contain the tensors that trace.json lists; they differ in {short_repr(differing)}"
        )
    for label in names:
        header = file.get_slice(label)
        shape, dtype = header.get_shape(), header.get_dtype()
        if dtype not in DTYPES:
            raise TraceError(f"{path}: {short_repr(label)} is {short_repr(dtype)}, which no tensor of a trace is")
        if len(shape) > MAX_AXES or any(size > MAX_SIZE for size in shape):
            raise TraceError(
                f"{path}: {short_repr(label)} has the shape {short_repr(shape)}, which no tensor of a trace has"
            )


def _check_content(path: Path, name: str, tensor: Tensor) -> None:
    if tensor.numel() and tensor.data_ptr() % tensor.dtype.itemsize:
        raise TraceError(f"{path}: {short_repr(name)} does not begin at a multiple of its width; save the trace again")
    if tensor.dtype == torch.bool:
        flat = tensor.view(torch.uint8).reshape(-1)
        if any(bool((piece > 1).any()) for piece in flat.split(PIECE_BYTES)):  # anything else is undefined in torch
            raise TraceError(f"{path}: {short_repr(name)} holds bytes that are neither true nor false; copy it again")


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
