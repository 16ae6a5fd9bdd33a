"""Tensors in safetensors files: their names, shapes and dtypes first, their numbers one at a time later.

In: a folder with model.safetensors, or with shards and their index. Out: a `StoredTensor` for each tensor.
Does not know: models. Memory: the headers; reading a tensor maps its part of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.json_fields import short_repr
from attnscope.models.json_files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
"""The dtypes of weights that are understood, by their names in safetensors."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}


MAX_HEADER_BYTES = 32 * 2**20
"""Room for 300,000 tensors."""


class StoredTensor(NamedTuple):
    """A tensor in a file, not yet read."""

    name: str
    """Its name in the file."""
    shape: tuple[int, ...]
    kind: str
    """The name of its dtype in the file."""
    dtype: torch.dtype | None
    """The dtype of the loaded tensor; None if it is not supported."""
    num_bytes: int
    """Its size in the file."""
    rows: Callable[[int, int], Tensor]
    """Reads the rows from a start to a stop index."""

    def whole(self) -> Tensor:
        """All its numbers, in any dtype that the file has."""
        return self.rows(0, self.shape[0] if self.shape else 1)


def open_weights(folder: Path, files: ExitStack) -> dict[str, StoredTensor]:
    """All tensors of a folder; its files stay open as long as `files` does."""
    if (folder / WEIGHTS).is_file():
        return open_file(folder / WEIGHTS, files)
    if (folder / INDEX).is_file():
        return _open_shards(folder, files)
    raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}.{_about_pickles(folder)}")


def open_file(path: Path, files: ExitStack) -> dict[str, StoredTensor]:
    """All tensors of one file, whose header is checked against its length."""
    safetensors = import_extra("safetensors")
    try:
        _refuse_long_header(path)
        file = files.enter_context(safetensors.safe_open(path, framework="pt"))
        found = {}
        for name in file.keys():  # noqa: SIM118 - it is no dict
            header = file.get_slice(name)
            shape, kind = tuple(header.get_shape()), header.get_dtype()
            dtype = DTYPES.get(kind)
            num_bytes = 0 if dtype is None else torch.Size(shape).numel() * dtype.itemsize
            found[name] = StoredTensor(name, shape, kind, dtype, num_bytes, partial(_rows, file, name))
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file ({error}); fetch it again") from error
    return found


def _refuse_long_header(path: Path) -> None:
    """The library reads headers of up to 100 MB, of which it makes several times that in memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path} claims to have a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read"
        )


def _rows(file: Any, name: str, start: int, stop: int) -> Tensor:
    tensor = file.get_tensor(name)  # a view of the mapped file
    return tensor[start:stop] if tensor.dim() else tensor


def _open_shards(folder: Path, files: ExitStack) -> dict[str, StoredTensor]:
    index = folder / INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{index} should hold a weight_map that names the file of each tensor")
    shards = sorted(set(places.values()))
    for shard in shards:
        if Path(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index} names the file {short_repr(shard)}, but shards are safetensors files in the same folder"
            )
        if not (folder / shard).is_file():
            raise CheckpointError(f"{index} names the file {short_repr(shard)}, which is missing; fetch it")
    found: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, stored in open_file(folder / shard, files).items():
            if places.get(name) != shard:
                raise CheckpointError(
                    f"{shard} holds {short_repr(name)}, which {INDEX} places in {short_repr(places.get(name))}; the "
                    "files do not belong together"
                )
            found[name] = stored
    missing = next((name for name in places if name not in found), None)
    if missing is not None:
        raise CheckpointError(f"{index} places {short_repr(missing)} in {places[missing]}, which does not hold it")
    return found


def _about_pickles(folder: Path) -> str:
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if not pickles:
        return ""
    return (
        f" {pickles[0]} is a pickle, which can run any code when it is opened, so it is not. If you trust it, convert "
        "it: transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other) writes safetensors"
    )
