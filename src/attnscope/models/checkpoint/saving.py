"""A model becomes a folder that Hugging Face opens: the table of its family, read backwards.

In: a `Decoder` or an `Encoder`. Out: config.json, and model.safetensors or shards with their index.
Does not know: tokens, text. Memory: the model, and one shard.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.families import family_of
from attnscope.models.checkpoint.family import Part, Weight
from attnscope.models.checkpoint.safetensors_files import INDEX, NAMES, WEIGHTS
from attnscope.models.decoder import Decoder
from attnscope.models.encoder import Encoder
from attnscope.models.json_files import write_json

Shard = list[tuple[str, Weight, Part, slice]]
"""Tensors of one file: their names in it, and where their numbers are."""

NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""A model knows no text; without these, each family would assume the numbers of its first release."""


def save(
    model: Decoder | Encoder,
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> None:
    """Write a model as a folder of Hugging Face, in its own dtype unless you choose one.

    The family is the one that expresses its config: gpt2, llama, mistral, qwen2, qwen3 or bert; what none can express
    is refused by name. Files appear under their own names when all of them are complete, config.json last.

    >>> from tempfile import TemporaryDirectory
    >>> from attnscope.models.encoder import EncoderConfig
    >>> config = EncoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     save(Encoder(config), folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    if not isinstance(model, Decoder | Encoder):
        raise CheckpointError(f"a {type(model).__name__} is not one of the kinds that can be saved: Decoder, Encoder")
    family = family_of(model.config)
    fields = family.fields_from(model.config)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    table = list(family.weights(model.config))
    if unknown := parameters.keys() ^ {weight.ours for weight in table}:
        raise CheckpointError(f"the model does not have the parameters that its config says: {sorted(unknown)[:5]}")
    if dtype is None:
        dtype = reduce(torch.promote_types, {parameter.dtype for parameter in parameters.values()})
    if dtype not in NAMES:
        raise CheckpointError(f"weights are saved as one of {', '.join(map(str, NAMES))}, but {dtype} was asked for")
    named = [(family.file_name(part.name), weight, part, rows) for weight in table for part, rows in weight.slices()]
    shards = list(_shards(named, dtype, max_shard_bytes))
    folder = Path(folder)
    _refuse_model(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".unfinished-"))
    try:
        _write_weights(scratch, shards, parameters, dtype)
        about = {
            "architectures": [family.architecture],
            "model_type": family.name,
            "dtype": str(dtype)[len("torch.") :],
        }
        write_json(scratch / "config.json", {**about, **NO_TOKENS, **fields})
        _put_in_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _shards(named: Shard, dtype: torch.dtype, max_bytes: int) -> Iterator[Shard]:
    """The tensors in order, as many to a file as it may hold; a tensor that is larger has a file to itself."""
    shard, size = [], 0
    for entry in named:
        num_bytes = torch.Size(entry[2].shape).numel() * dtype.itemsize
        if shard and size + num_bytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += num_bytes
    yield shard


def _write_weights(scratch: Path, shards: list[Shard], parameters: dict[str, Tensor], dtype: torch.dtype) -> None:
    writer = import_extra("safetensors.torch")
    places, total = {}, 0
    for number, shard in enumerate(shards, start=1):
        name = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {
            their_name: _theirs(parameters, weight, part, rows, dtype) for their_name, weight, part, rows in shard
        }
        writer.save_file(tensors, scratch / name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        write_json(scratch / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _theirs(parameters: dict[str, Tensor], weight: Weight, part: Part, rows: slice, dtype: torch.dtype) -> Tensor:
    ours = parameters[weight.ours].detach()[rows]
    theirs = (ours.T if weight.transposed else ours).to(device="cpu", dtype=dtype, copy=True).contiguous()
    assert tuple(theirs.shape) == part.shape, f"{weight.ours} is {tuple(theirs.shape)}, its table says {part.shape}"
    return theirs


def _refuse_model(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give the name of a folder")
    if not overwrite and (found := [path.name for path in _model_files(folder)]):
        raise CheckpointError(
            f"{folder} already holds a model ({found[0]}); choose another folder, or pass overwrite=True"
        )


def _model_files(folder: Path) -> list[Path]:
    names = ("config.json", WEIGHTS, INDEX, "model-*-of-*.safetensors")
    return [path for name in names for path in sorted(folder.glob(name))]


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Rename what is complete. A folder without config.json is no model, so that goes first and comes last."""
    for path in _model_files(folder):
        path.unlink()
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(path, folder / path.name)
