"""Checkpoint to model: validates all headers first, then copies each tensor into its parameter.

In: a folder of Hugging Face, a name on the Hub, or a GGUF file. Out: a `Decoder` or an `Encoder`.
Does not know: tokens, text. Memory: the model, and a few million numbers of the file at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.rotary import convert_layout
from attnscope.errors import CheckpointError, ShapeError, UnsupportedModelError
from attnscope.models.checkpoint.families import family_from_fields
from attnscope.models.checkpoint.family import FileTensor, ParameterSource
from attnscope.models.checkpoint.folder_checksums import verified
from attnscope.models.checkpoint.gguf_file import open_gguf
from attnscope.models.checkpoint.gguf_model import IGNORED, IGNORED_OF_BERT, config_from_gguf, parameters_from_gguf
from attnscope.models.checkpoint.safetensors_files import StoredTensor, open_weights
from attnscope.models.checkpoint.source import locate
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.models.encoder import Encoder, EncoderConfig
from attnscope.models.json_fields import Fields, short_repr
from attnscope.models.json_files import read_json

Progress = Callable[[int, int], object]
"""Called with the bytes read so far, and the total."""

CHUNK_NUMEL = 2**20
"""Elements of a tensor that are read at once: enough to be fast, little compared with any model."""


class OpenCheckpoint(NamedTuple):
    """A checkpoint whose headers have been read, but not its tensors."""

    config: DecoderConfig | EncoderConfig
    parameters: Iterator[ParameterSource]
    """The parameters of the model, and the tensors they are made of."""
    stored: dict[str, StoredTensor]
    """The tensors of the file by name, without a prefix."""
    ignored_tensors: re.Pattern[str]
    """Names of tensors that are not loaded."""
    tied_tensors: dict[str, str]
    """Tensors that may be there if they are equal to another one."""
    source: str
    """The file or folder, for messages."""


def load(
    source: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
) -> Decoder | Encoder:
    """Load a model from a checkpoint, in eval mode.

    Args:
        source: A folder of Hugging Face, a name on the Hub ("org/name"), a GGUF file, or a model that
            `attnscope download` has fetched.
        dtype: The dtype of the parameters; None for that of the file (float32 for GGUF; of several, the narrowest
            that holds all).
        device: The device of the parameters.
        revision: The revision on the Hub.
        ignore: Config fields and tensors to treat as missing. Others that are not known raise an error.
        progress: Called with the bytes read so far, and the total.

    Returns:
        A `Decoder` or an `Encoder`.

    Raises:
        CheckpointError: If the checkpoint is missing or invalid, or differs from its checksums.
        UnsupportedModelError: If it is sound, but these models do not implement it.
        ShapeError: If `dtype` is not a floating-point dtype.

    >>> from tempfile import TemporaryDirectory
    >>> from attnscope.models.checkpoint.saving import save
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     save(Decoder(config), folder)
    ...     load(folder).config == config
    True
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ShapeError(f"load: expected a floating-point dtype, got {dtype}")
    path = locate(source, revision)
    ignore = (ignore,) if isinstance(ignore, str) else ignore
    with ExitStack() as files:
        if path.is_dir():
            files.enter_context(verified(path))
        try:
            opened = (open_folder if path.is_dir() else open_gguf_checkpoint)(path, files, ignore)
            parameters = match_tensors(opened)
            model = build_on_meta(opened.config)
        except CheckpointError:
            raise
        except ValueError as error:  # raised by our own config and layers
            raise CheckpointError(f"{path} describes a model that cannot be built: {error}") from error
        dtype = common_dtype(parameters, opened.stored) if dtype is None else dtype
        tensors = read_parameters(
            parameters, opened.stored, dtype=dtype, device=torch.device(device), progress=progress
        )
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def open_folder(folder: Path, files: ExitStack, ignore: Collection[str]) -> OpenCheckpoint:
    """Read the config and the tensor headers of a folder."""
    path = folder / "config.json"
    fields = Fields(read_json(path), source=str(path), ignore=ignore, error=UnsupportedModelError)
    family = family_from_fields(fields)
    stored: dict[str, StoredTensor] = {}
    for name, tensor in open_weights(folder, files).items():
        if name in ignore:
            continue
        if stored.setdefault(family.body_name(name), tensor) is not tensor:
            raise CheckpointError(f"{folder} holds {short_repr(name)} twice, under an old and a new name")
    found = {flag: name in stored for flag, name in family.flags_from_tensors.items()}
    config = replace(family.config_from(fields), **found)
    return OpenCheckpoint(
        config, family.parameters(config), stored, family.ignored_tensors, family.tied_tensors, str(folder)
    )


def open_gguf_checkpoint(path: Path, files: ExitStack, ignore: Collection[str]) -> OpenCheckpoint:
    """Read the metadata and the tensor headers of a GGUF file."""
    metadata, tensors = open_gguf(path, files)
    stored = {name: tensor for name, tensor in tensors.items() if name not in ignore}
    family, config = config_from_gguf(Fields(metadata, source=str(path), ignore=ignore), stored)
    ignored = IGNORED_OF_BERT if isinstance(config, EncoderConfig) else IGNORED
    return OpenCheckpoint(config, parameters_from_gguf(family, config), stored, ignored, {}, str(path))


def match_tensors(opened: OpenCheckpoint) -> list[ParameterSource]:
    """List all parameters, after checking that the file has exactly the tensors they need.

    Parameters are generated one by one, so a config with a billion layers fails at the first missing tensor.
    """
    parameters, read = [], set()
    for parameter in opened.parameters:
        for tensor in parameter.tensors:
            _check_tensor(tensor, opened)
            read.add(tensor.name)
        parameters.append(parameter)
    for name in sorted(opened.stored.keys() - read):
        if opened.ignored_tensors.fullmatch(name):
            continue
        stored = opened.stored[name]
        original = opened.stored.get(opened.tied_tensors.get(name, ""))
        if original is None:
            raise UnsupportedModelError(
                f"{opened.source} has an unknown tensor {short_repr(stored.name)} {stored.shape}. It may change what "
                f"the model computes. If you know that it does not, pass ignore=({short_repr(stored.name)},)"
            )
        if not _are_equal(stored, original):
            raise CheckpointError(
                f"{opened.source} has {stored.name}, which its config ties to {original.name}, but they differ. To use "
                f"{original.name} for both, pass ignore=({stored.name!r},)"
            )
    return parameters


def common_dtype(parameters: list[ParameterSource], stored: dict[str, StoredTensor]) -> torch.dtype:
    """The narrowest dtype that holds all tensors of the parameters."""
    dtypes = {stored[tensor.name].dtype for parameter in parameters for tensor in parameter.tensors}
    return reduce(torch.promote_types, (dtype for dtype in dtypes if dtype is not None))


def build_on_meta(config: DecoderConfig | EncoderConfig) -> Decoder | Encoder:
    """The model on the meta device, without memory for its parameters."""
    with torch.device("meta"):
        return Decoder(config) if isinstance(config, DecoderConfig) else Encoder(config)


def read_parameters(
    parameters: list[ParameterSource],
    stored: dict[str, StoredTensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, Tensor]:
    """Read the parameters by name, copying each tensor of the file into its rows."""
    total = sum(stored[tensor.name].num_bytes for parameter in parameters for tensor in parameter.tensors)
    done, result = 0.0, {}
    for parameter in parameters:
        result[parameter.name] = whole = torch.empty(parameter.shape(), dtype=dtype, device=device)
        for tensor, rows in parameter.slices():
            target = whole[rows].T if parameter.transposed else whole[rows]
            for start, stop in _row_chunks(tensor):
                chunk = stored[tensor.name].rows(start, stop)
                if tensor.interleaved is not None:
                    chunk = convert_layout(
                        chunk, source="interleaved", target="half", head_dim=tensor.interleaved, axis=0
                    )
                target[start:stop].copy_(chunk)
                done += stored[tensor.name].num_bytes * (stop - start) / tensor.shape[0]
                if progress is not None:
                    progress(round(done), total)
    return result


def _row_chunks(tensor: FileTensor) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about CHUNK_NUMEL elements, and of whole heads."""
    unit = tensor.interleaved or 1
    step = max(CHUNK_NUMEL // (torch.Size(tensor.shape[1:]).numel() * unit), 1) * unit
    for start in range(0, tensor.shape[0], step):
        yield start, min(start + step, tensor.shape[0])


def _are_equal(stored: StoredTensor, other: StoredTensor) -> bool:
    if stored.dtype is None or other.dtype is None or stored.shape != other.shape:
        return False
    chunks = _row_chunks(FileTensor(stored.name, stored.shape))
    return all(torch.equal(stored.rows(*rows), other.rows(*rows)) for rows in chunks)


def _check_tensor(tensor: FileTensor, opened: OpenCheckpoint) -> None:
    stored = opened.stored.get(tensor.name)
    if stored is None:
        if tensor.name in opened.tied_tensors:
            raise UnsupportedModelError(
                f"{opened.source} has no {tensor.name}, and its config does not tie it to the token embeddings; this "
                "may be a base model without its head"
            )
        raise CheckpointError(f"{opened.source} has no tensor {tensor.name} {tensor.shape}, which its config needs")
    if stored.shape != tensor.shape:
        raise CheckpointError(
            f"{opened.source}: {stored.name} has shape {stored.shape}, but its config needs {tensor.shape}"
        )
    if stored.dtype is None:
        raise CheckpointError(
            f"{opened.source}: {stored.name} is {stored.kind}; parameters must be float16, bfloat16, float32 or "
            "float64, or of a quantization type that the gguf package supports"
        )
