"""A family of checkpoints: its config fields, and which tensors of a file make which parameters of our model.

In: a config. Out: the parameters one by one, with shapes computed by arithmetic, so that no model is built.
Does not know: files. Memory: O(1); parameters are generated lazily, since a config may claim a billion layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnscope.errors import CheckpointError
from attnscope.models.decoder import DecoderConfig
from attnscope.models.json_fields import Fields


class FileTensor(NamedTuple):
    """The name and the shape of a tensor in a file."""

    name: str
    shape: tuple[int, ...]
    interleaved: int | None = None
    """The size of a head, if the rows of each head are in the interleaved rotary layout; else None."""


class ParameterSource(NamedTuple):
    """A parameter of our model, and the tensors of the file that are concatenated along its rows."""

    name: str
    tensors: tuple[FileTensor, ...]
    transposed: bool = False
    """Whether the file stores the transpose."""

    def slices(self) -> Iterator[tuple[FileTensor, slice]]:
        """Each tensor, and the rows of the parameter that it fills."""
        row = 0
        for tensor in self.tensors:
            end = row + tensor.shape[-1 if self.transposed else 0]
            yield tensor, slice(row, end)
            row = end

    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        *_, (tensor, rows) = self.slices()
        return (rows.stop, *(tensor.shape[-2::-1] if self.transposed else tensor.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of checkpoints, for loading and saving. Names of its tensors have no prefix."""

    name: str
    """The `model_type` in config.json."""
    architecture: str
    """The class of transformers that loads what `save` writes."""
    prefix: str
    """The prefix of the body's tensors in files of a model with a head."""
    config_from: Callable[[Fields], Any]
    """Our config from their fields."""
    fields_from: Callable[[Any], dict[str, object]]
    """Their fields from our config; raises CheckpointError for what the family does not support."""
    parameters: Callable[[Any], Iterator[ParameterSource]]
    """All parameters of the model with this config."""
    ignored_tensors: re.Pattern[str]
    """Names of tensors that are not loaded: old buffers, task heads."""
    without_prefix: tuple[str, ...] = ()
    """Names without a prefix in any file."""
    tied_tensors: dict[str, str] = field(default_factory=dict)
    """Tensors that may be in a file although the config ties them to another tensor, by name."""
    flags_from_tensors: dict[str, str] = field(default_factory=dict)
    """Flags of our config that are true if the file has this tensor."""
    rename_legacy: Callable[[str], str] = str
    """Maps an older name of a tensor to the current one."""
    saves_body: bool = False
    """Whether `save` writes the body only, without a prefix."""

    def body_name(self, name: str) -> str:
        """The name without a prefix, from the name in a file."""
        return self.rename_legacy(name.removeprefix(self.prefix))

    def file_name(self, name: str) -> str:
        """The name in the files that `save` writes, from the name without a prefix."""
        return name if self.saves_body or name in self.without_prefix else self.prefix + name


def linear(
    name: str, sources: tuple[str, ...], rows: int, columns: int, *, bias: bool = True, transposed: bool = False
) -> Iterator[ParameterSource]:
    """The parameters of a linear layer that stacks several of the file, each (rows, columns)."""
    shape = (columns, rows) if transposed else (rows, columns)
    yield ParameterSource(f"{name}.weight", tuple(FileTensor(f"{each}.weight", shape) for each in sources), transposed)
    if bias:
        yield ParameterSource(f"{name}.bias", tuple(FileTensor(f"{each}.bias", (rows,)) for each in sources))


def norm(name: str, source: str, size: int, *, bias: bool = True) -> Iterator[ParameterSource]:
    """The parameters of a norm."""
    for kind in ("weight", "bias") if bias else ("weight",):
        yield ParameterSource(f"{name}.{kind}", (FileTensor(f"{source}.{kind}", (size,)),))


def embedding(name: str, source: str, rows: int, size: int) -> ParameterSource:
    """The parameter of an embedding, or of a linear layer without bias."""
    return ParameterSource(f"{name}.weight", (FileTensor(f"{source}.weight", (rows, size)),))


def require(kind: str, config: object, **expected: object) -> None:
    """Raise a CheckpointError if this kind of checkpoint does not support the config."""
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise CheckpointError(
                f"a {kind} checkpoint has {name} = {value!r}, but this model has {getattr(config, name)!r}"
            )


def refuse_dropout(kind: str, config: DecoderConfig) -> None:
    """Raise a CheckpointError for dropout, which would be lost."""
    if config.dropout:
        raise CheckpointError(
            f"a {kind} checkpoint has no field for dropout, but this model has {config.dropout}. It only matters in "
            "training; to save the model without it, set model.config = dataclasses.replace(model.config, dropout=0.0)"
        )
