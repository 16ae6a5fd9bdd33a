"""Tensors in safetensors files: written as one stream, opened as views of the mapped file.

In: tensors by name, wherever they are and however they are strided. Out: a file, with its size and its hash; and the
tensors again, of which nothing is read until it is asked for. A file from a stranger gives tensors or a `TraceError`.
Does not know: what the tensors mean. Memory: a piece of one tensor to write; the header to open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.checksums import sha256_file
from attnscope.errors import MissingExtraError, TraceError, UnsupportedError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.safetensors_files import MAX_HEADER_BYTES
from attnscope.models.json_fields import short_repr

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
"""The dtypes that are understood, by their names in safetensors."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

ALIGNMENT = 8
PIECE_BYTES = 2**22  # written, and hashed while the processor's cache still has it
MAX_AXES = 5
MAX_SIZE = 2**40  # of an axis
ROOM, ROOM_A_TENSOR = 2**14, 2**9  # bytes that a header may have


class Written(NamedTuple):
    """A file of a trace: its name in the folder, and what it holds."""

    name: str
    num_bytes: int
    sha256: str


def write_file(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Written:
    """Write tensors to a new file. Its header names the file, so that one put in the place of another is noticed."""
    header, ordered = _header(name, tensors)
    digest, total = hashlib.sha256(), 0
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in _all_pieces(header, ordered):
            file.write(piece)
            digest.update(piece)
            total += len(piece)
    return Written(name, total, digest.hexdigest())


def _header(name: str, tensors: Mapping[str, Tensor]) -> tuple[bytes, list[Tensor]]:
    """The header, and the tensors in their order in the file: wide dtypes first, which keeps all of them aligned."""
    places: dict[str, Any] = {"__metadata__": {"format": "pt", "file": name}}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    start = 0
    for label, tensor in ordered:
        if tensor.dtype not in NAMES:
            raise UnsupportedError(f"save: {label} of {name} is {tensor.dtype}, which a trace on disk cannot hold")
        stop = start + tensor.numel() * tensor.dtype.itemsize
        places[label] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(places, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > _most_header(len(tensors)):
        raise UnsupportedError(f"save: {len(tensors):,} tensors in {name} are more than one file of a trace can hold")
    return len(text).to_bytes(8, "little") + text, [tensor for _, tensor in ordered]


def _most_header(tensors: int) -> int:
    return min(ROOM + ROOM_A_TENSOR * tensors, MAX_HEADER_BYTES)


def _all_pieces(header: bytes, tensors: list[Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for tensor in tensors:
        for part in _contiguous_parts(tensor.detach()):
            content = part.reshape(-1).view(torch.uint8).numpy().data
            for start in range(0, len(content), PIECE_BYTES):
                yield content[start : start + PIECE_BYTES]


def _contiguous_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor as parts in its order: itself where it is contiguous, or else small copies one after the other."""
    if tensor.is_contiguous() and tensor.device.type == "cpu":
        yield tensor
        return
    if tensor.dim() == 0:
        yield tensor.cpu()
        return
    row_bytes = tensor.nbytes // max(tensor.shape[0], 1)
    for part in tensor.split(max(1, PIECE_BYTES // max(row_bytes, 1))):
        if part.nbytes > PIECE_BYTES and part.dim() > 1:
            yield from _contiguous_parts(part[0])  # so large that it is alone
        else:
            yield part.cpu().contiguous()


def open_file(folder: Path, written: Written, names: Collection[str], *, verify: bool) -> dict[str, Tensor]:
    """The tensors of a file, which has to hold these and no others; with `verify`, all of it is read and hashed."""
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
        if verify:
            _check_hash(path, written.sha256)
        with import_extra("safetensors").safe_open(path, framework="pt") as file:
            _check_header(path, file, written.name, names)
            found = {name: file.get_tensor(name) for name in names}
    except (TraceError, MemoryError, MissingExtraError):
        raise
    except Exception as error:  # the library raises its own errors, those of the system and those of torch
        raise TraceError(f"{path} is damaged or no safetensors file ({_short(error)}); copy it again") from error
    for name, tensor in found.items():
        _check_content(path, name, tensor)
    return found


def refuse_way_out(folder: Path, path: Path) -> None:
    """Raise unless a path is a file that lies in the folder, also once links are followed."""
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


def _check_hash(path: Path, wanted: str) -> None:
    found = sha256_file(path)
    if found != wanted:
        raise TraceError(
            f"{path} has the SHA-256 {found[:16]}... where trace.json says {wanted[:16]}...: its content was changed; "
            "copy it again"
        )


def _check_header(path: Path, file: Any, name: str, names: Collection[str]) -> None:
    place = (file.metadata() or {}).get("file")
    if place != name:
        raise TraceError(f"{path} was written as {short_repr(place)}, so it is not the file that belongs here")
    there = set(file.keys())
    if there != set(names):
        differing = sorted(there ^ set(names))[:3]
        raise TraceError(
            f"{path} does not hold the tensors that trace.json says; they differ in {short_repr(differing)}"
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
