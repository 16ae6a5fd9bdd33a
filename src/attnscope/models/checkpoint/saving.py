"""Model to checkpoint: a folder that Hugging Face transformers loads.

In: a `Decoder` or an `Encoder`. Out: config.json, model.safetensors or shards with their index, and the
checksums of all of them. Does not know: tokens, text. Memory: the model, and 8 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial, reduce
from pathlib import Path

import torch
from torch import Tensor

from attnscope.checksums import Crc32, crc32_file
from attnscope.errors import CheckpointError
from attnscope.folder_lock import scratch_folder
from attnscope.models.checkpoint.families import family_from_config
from attnscope.models.checkpoint.family import FileTensor, ParameterSource
from attnscope.models.checkpoint.folder_checksums import FILE as CHECKSUMS
from attnscope.models.checkpoint.folder_checksums import read_checksums, write_checksums
from attnscope.models.checkpoint.safetensors_files import INDEX, NAMES, WEIGHTS
from attnscope.models.checkpoint.safetensors_writer import TensorToWrite, encode_header, to_file_order, write_stream
from attnscope.models.decoder import Decoder
from attnscope.models.encoder import Encoder
from attnscope.models.json_files import write_json

Shard = list[tuple[str, ParameterSource, FileTensor, slice]]
"""Tensors of one file: their names in it, and the rows of the parameters they hold."""

FILES = ("config.json", WEIGHTS, INDEX, "model-*-of-*.safetensors")
"""The files of a model; config.json, which marks one, is first."""

SCRATCH = ".unfinished-model-"

NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""A model has no tokenizer; without these fields, each family would assume the ids of its first release."""


def save(
    model: Decoder | Encoder,
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> None:
    """Save a model as a folder that Hugging Face transformers loads.

    The model family follows from the config: gpt2, llama, mistral, qwen2, qwen3 or bert. Files get their final names
    when all of them are complete, config.json last. `load` compares them with their checksums, which are saved, too.

    Args:
        model: A `Decoder` or an `Encoder`.
        folder: The folder, which is created if necessary.
        dtype: The dtype in the file; None for that of the model.
        max_shard_bytes: The size above which tensors go to another file.
        overwrite: Whether to replace a model in the folder.

    Raises:
        CheckpointError: If no family supports the config, or the folder already has a model.

    >>> from tempfile import TemporaryDirectory
    >>> from attnscope.models.encoder import EncoderConfig
    >>> config = EncoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     save(Encoder(config), folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['attnscope-checksums.json', 'config.json', 'model.safetensors']
    """
    if not isinstance(model, Decoder | Encoder):
        raise CheckpointError(f"save: expected a Decoder or an Encoder, got {type(model).__name__}")
    family = family_from_config(model.config)
    fields = family.fields_from(model.config)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    sources = list(family.parameters(model.config))
    if unknown := parameters.keys() ^ {source.name for source in sources}:
        raise CheckpointError(f"the model does not have the parameters of its config: {sorted(unknown)[:5]}")
    if dtype is None:
        dtype = reduce(torch.promote_types, {parameter.dtype for parameter in parameters.values()})
    if dtype not in NAMES:
        raise CheckpointError(f"save: expected dtype {', '.join(map(str, NAMES))}, got {dtype}")
    named = [
        (family.file_name(tensor.name), source, tensor, rows) for source in sources for tensor, rows in source.slices()
    ]
    shards = list(_shards(named, dtype, max_shard_bytes))
    folder = Path(folder)
    _check_folder(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    in_use = CheckpointError(f"save: another process is saving a model to {folder}; wait until it ends")
    with scratch_folder(folder, SCRATCH, in_use) as scratch:
        checksums = _write_weights(scratch, shards, parameters, dtype)
        about = {
            "architectures": [family.architecture],
            "model_type": family.name,
            "dtype": str(dtype)[len("torch.") :],
        }
        write_json(scratch / "config.json", {**about, **NO_TOKENS, **fields})
        small = [path for path in _model_files(scratch) if path.name not in checksums]
        checksums |= {path.name: crc32_file(path) for path in small}
        write_checksums(scratch, _checksums_of_others(folder) | checksums)
        _move_files(scratch, folder)


def _shards(named: Shard, dtype: torch.dtype, max_bytes: int) -> Iterator[Shard]:
    """The tensors in order, split by size; a tensor above the limit gets a file of its own."""
    shard, size = [], 0
    for entry in named:
        num_bytes = torch.Size(entry[2].shape).numel() * dtype.itemsize
        if shard and size + num_bytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += num_bytes
    yield shard


def _write_weights(
    scratch: Path, shards: list[Shard], parameters: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, str]:
    """Write all tensors, and return the checksum of each file."""
    places, total, checksums = {}, 0, {}
    for number, shard in enumerate(shards, start=1):
        name = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = to_file_order(
            TensorToWrite(file_name, dtype, tensor.shape, partial(_to_file, parameters, source, tensor, rows))
            for file_name, source, tensor, rows in shard
        )
        digest = Crc32()
        write_stream(scratch / name, encode_header(tensors, {"format": "pt"}), tensors, digest)
        checksums[name] = digest.hexdigest()
        places |= dict.fromkeys((tensor.name for tensor in tensors), name)
        total += sum(tensor.num_bytes for tensor in tensors)
    if len(shards) > 1:
        write_json(scratch / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    return checksums


def _to_file(parameters: dict[str, Tensor], source: ParameterSource, tensor: FileTensor, rows: slice) -> Tensor:
    """One tensor of the file: rows of a parameter, as a view."""
    part = parameters[source.name].detach()[rows]
    result = part.T if source.transposed else part
    assert tuple(result.shape) == tensor.shape, f"{source.name}: expected {tensor.shape}, got {tuple(result.shape)}"
    return result


def _check_folder(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give the name of a folder")
    if not overwrite and (found := [path.name for path in _model_files(folder)]):
        raise CheckpointError(
            f"{folder} already holds a model ({found[0]}); choose another folder, or pass overwrite=True"
        )


def _model_files(folder: Path) -> list[Path]:
    return [path for name in FILES for path in sorted(folder.glob(name))]


def _checksums_of_others(folder: Path) -> dict[str, str]:
    """The checksums of files in the folder that are not replaced, such as those of a tokenizer."""
    try:
        found = read_checksums(folder)
    except CheckpointError:  # damaged, and replaced like the model
        return {}
    return {name: checksum for name, checksum in found.items() if not any(fnmatch(name, kind) for kind in FILES)}


def _move_files(scratch: Path, folder: Path) -> None:
    """Move the complete files to the folder; config.json is removed first and moved last, since it marks a model."""
    for path in _model_files(folder):
        path.unlink()
    config, *others = _model_files(scratch)
    for path in (scratch / CHECKSUMS, *others, config):
        os.replace(path, folder / path.name)
