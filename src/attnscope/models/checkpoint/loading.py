"""A checkpoint becomes a model: everything is checked in the headers first, then each tensor is copied to its place.

In: a folder of Hugging Face, the name of one on the hub, or a GGUF file. Out: a `Decoder` or an `Encoder`.
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
from attnscope.errors import CheckpointError, ShapeError
from attnscope.models.checkpoint.families import family_named
from attnscope.models.checkpoint.family import Part, Weight
from attnscope.models.checkpoint.gguf_file import open_gguf
from attnscope.models.checkpoint.gguf_model import UNREAD, UNREAD_OF_BERT, config_of, table_of
from attnscope.models.checkpoint.safetensors_files import Stored, open_weights
from attnscope.models.checkpoint.source import locate
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.models.encoder import Encoder, EncoderConfig
from attnscope.models.json_fields import Fields, short_repr
from attnscope.models.json_files import read_json

Progress = Callable[[int, int], None]
"""Called with the bytes that have been read so far, and with all there are."""

PIECE = 2**20
"""How many numbers of a tensor are read at once: enough to be quick, little beside any model."""


class Opened(NamedTuple):
    """A checkpoint whose headers have been read, and none of its numbers."""

    config: DecoderConfig | EncoderConfig
    table: Iterator[Weight]
    """Which tensors make which of ours."""
    stored: dict[str, Stored]
    """The tensors by their names in the table."""
    unread: re.Pattern[str]
    """Names of tensors that change nothing here."""
    copies: dict[str, str]
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
    """The model of a folder, of a name on the hub ("org/name") or of a GGUF file, in eval mode.

    It has the dtype of the file unless you choose one: the narrowest that holds all of them, if there are several, and
    float32 for GGUF. Fields and tensors that are not understood are refused by name; those in `ignore` are treated as
    if they were not there.

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
        raise ShapeError(f"weights are floating-point numbers, but load was asked for {dtype}")
    path = locate(source, revision)
    ignore = (ignore,) if isinstance(ignore, str) else ignore
    with ExitStack() as files:
        try:
            opened = (open_folder if path.is_dir() else open_file)(path, files, ignore)
            table = check(opened)
            model = build(opened.config)
        except CheckpointError:
            raise
        except ValueError as error:  # a config that our own classes refuse
            raise CheckpointError(f"{path} describes a model that cannot be built: {error}") from error
        dtype = common_dtype(table, opened.stored) if dtype is None else dtype
        tensors = fill(table, opened.stored, dtype=dtype, device=torch.device(device), progress=progress)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def open_folder(folder: Path, files: ExitStack, ignore: Collection[str]) -> Opened:
    """Read the config and the headers of a folder."""
    fields = Fields(read_json(folder / "config.json"), source=str(folder / "config.json"), ignore=ignore)
    family = family_named(fields)
    stored: dict[str, Stored] = {}
    for name, tensor in open_weights(folder, files).items():
        if name in ignore:
            continue
        if stored.setdefault(family.table_name(name), tensor) is not tensor:
            raise CheckpointError(f"{folder} holds {short_repr(name)} twice, under an old and a new name")
    found = {flag: name in stored for flag, name in family.present.items()}
    config = replace(family.config_from(fields), **found)
    return Opened(config, family.weights(config), stored, family.unread, family.copies, str(folder))


def open_file(path: Path, files: ExitStack, ignore: Collection[str]) -> Opened:
    """Read the metadata and the headers of a GGUF file."""
    metadata, tensors = open_gguf(path, files)
    stored = {name: tensor for name, tensor in tensors.items() if name not in ignore}
    family, config = config_of(Fields(metadata, source=str(path), ignore=ignore), stored)
    unread = UNREAD_OF_BERT if isinstance(config, EncoderConfig) else UNREAD
    return Opened(config, table_of(family, config), stored, unread, {}, str(path))


def check(opened: Opened) -> list[Weight]:
    """The whole table, after each line of it was found in the headers, and nothing in them that nobody reads.

    Lines are drawn one at a time, so a table of a billion lines ends at the first that the file does not have.
    """
    table, read = [], set()
    for weight in opened.table:
        for part in weight.theirs:
            _require(part, opened)
            read.add(part.name)
        table.append(weight)
    for name in sorted(opened.stored.keys() - read):
        if opened.unread.fullmatch(name):
            continue
        stored = opened.stored[name]
        original = opened.stored.get(opened.copies.get(name, ""))
        if original is None:
            raise CheckpointError(
                f"{opened.source} has an unknown tensor {short_repr(stored.name)} {stored.shape}. It may change what "
                f"the model computes. If you know that it does not, pass ignore=({short_repr(stored.name)},)"
            )
        if not _are_equal(stored, original):
            raise CheckpointError(
                f"{opened.source} holds {stored.name}, which its config says is the same as {original.name}, but they "
                f"differ. To go by the config, pass ignore=({stored.name!r},)"
            )
    return table


def common_dtype(table: list[Weight], stored: dict[str, Stored]) -> torch.dtype:
    """The narrowest dtype that holds everything the table reads."""
    dtypes = {stored[part.name].dtype for weight in table for part in weight.theirs}
    return reduce(torch.promote_types, (dtype for dtype in dtypes if dtype is not None))


def build(config: DecoderConfig | EncoderConfig) -> Decoder | Encoder:
    """The model without any memory for its numbers."""
    with torch.device("meta"):
        return Decoder(config) if isinstance(config, DecoderConfig) else Encoder(config)


def fill(
    table: list[Weight],
    stored: dict[str, Stored],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, Tensor]:
    """Our tensors by name, each part of the file copied into its rows."""
    total = sum(stored[part.name].num_bytes for weight in table for part in weight.theirs)
    done, tensors = 0.0, {}
    for weight in table:
        tensors[weight.ours] = ours = torch.empty(weight.shape(), dtype=dtype, device=device)
        for part, rows in weight.slices():
            target = ours[rows].T if weight.transposed else ours[rows]
            for start, stop in _pieces(part):
                theirs = stored[part.name].rows(start, stop)
                if part.interleaved is not None:
                    theirs = convert_layout(
                        theirs, source="interleaved", target="half", head_dim=part.interleaved, axis=0
                    )
                target[start:stop].copy_(theirs)
                done += stored[part.name].num_bytes * (stop - start) / part.shape[0]
                if progress is not None:
                    progress(round(done), total)
    return tensors


def _pieces(part: Part) -> Iterator[tuple[int, int]]:
    """The rows of a part in pieces of about a million numbers, and of whole heads."""
    unit = part.interleaved or 1
    step = max(PIECE // (torch.Size(part.shape[1:]).numel() * unit), 1) * unit
    for start in range(0, part.shape[0], step):
        yield start, min(start + step, part.shape[0])


def _are_equal(stored: Stored, other: Stored) -> bool:
    if stored.dtype is None or other.dtype is None or stored.shape != other.shape:
        return False
    pieces = _pieces(Part(stored.name, stored.shape))
    return all(torch.equal(stored.rows(*rows), other.rows(*rows)) for rows in pieces)


def _require(part: Part, opened: Opened) -> None:
    stored = opened.stored.get(part.name)
    if stored is None:
        if part.name in opened.copies:
            raise CheckpointError(
                f"{opened.source} has no {part.name}, and its config says that the token embeddings do not stand in "
                "for it; this may be the body of a model without its head"
            )
        raise CheckpointError(f"{opened.source} has no tensor {part.name} {part.shape}, which its config asks for")
    if stored.shape != part.shape:
        raise CheckpointError(
            f"{opened.source}: {stored.name} has shape {stored.shape}, but its config asks for {part.shape}"
        )
    if stored.dtype is None:
        raise CheckpointError(
            f"{opened.source}: {stored.name} is {stored.kind}; weights have to be float16, bfloat16, float32 or "
            "float64, or of a quantized kind that the gguf package understands"
        )
