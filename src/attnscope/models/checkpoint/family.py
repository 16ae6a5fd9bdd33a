"""What a family of checkpoints is: the fields of its config, and a table of which of its tensors make which of ours.

In: a config. Out: the table, line by line, with shapes computed by arithmetic, so that nothing is built to make it.
Does not know: files, tensors. Memory: O(1); the table is read lazily, and a config may promise a billion layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnscope.errors import CheckpointError
from attnscope.models.decoder import DecoderConfig
from attnscope.models.json_fields import Fields


class Part(NamedTuple):
    """A tensor in a file."""

    name: str
    shape: tuple[int, ...]
    interleaved: int | None = None
    """The width of a head, if the rows of each head are stored in the interleaved rotary layout."""


class Weight(NamedTuple):
    """A tensor of ours, and the tensors in the file that it is made of, one after the other along its rows."""

    ours: str
    theirs: tuple[Part, ...]
    transposed: bool = False
    """Whether the file holds columns where we have rows."""

    def slices(self) -> Iterator[tuple[Part, slice]]:
        """Each part, and the rows of ours that it fills."""
        row = 0
        for part in self.theirs:
            end = row + part.shape[-1 if self.transposed else 0]
            yield part, slice(row, end)
            row = end

    def shape(self) -> tuple[int, ...]:
        """The shape of ours."""
        *_, (part, rows) = self.slices()
        return (rows.stop, *(part.shape[-2::-1] if self.transposed else part.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of checkpoint, both ways. Names in its table have no prefix."""

    name: str
    """The `model_type` in config.json."""
    architecture: str
    """The class of transformers that opens what `save` writes."""
    prefix: str
    """What stands before the names of the body in files of a model with a head; bare bodies have none."""
    config_from: Callable[[Fields], Any]
    """Our config from their fields."""
    fields_from: Callable[[Any], dict[str, object]]
    """Their fields from our config; raises CheckpointError for what the family cannot express."""
    weights: Callable[[Any], Iterator[Weight]]
    """The table, for one of our configs."""
    unread: re.Pattern[str]
    """Names of tensors that change nothing here: old buffers, heads of tasks."""
    without_prefix: tuple[str, ...] = ()
    """Names that have no prefix in any file."""
    copies: dict[str, str] = field(default_factory=dict)
    """Tensors that a file may hold although the config says that they are equal to another one."""
    present: dict[str, str] = field(default_factory=dict)
    """Flags of our config that no field tells: each is true if the file holds this tensor."""
    renamed: Callable[[str], str] = str
    """An older name of a tensor, brought up to date."""
    bare: bool = False
    """Whether `save` writes the body alone, which has no prefix."""

    def table_name(self, name: str) -> str:
        """The name of a tensor in the table, from its name in a file."""
        return self.renamed(name.removeprefix(self.prefix))

    def file_name(self, name: str) -> str:
        """The name of a tensor in the files that we write, from its name in the table."""
        return name if self.bare or name in self.without_prefix else self.prefix + name


def linear(
    ours: str, theirs: tuple[str, ...], rows: int, columns: int, *, bias: bool = True, transposed: bool = False
) -> Iterator[Weight]:
    """The lines of a linear layer of ours that stacks some of theirs, each with so many rows and columns."""
    shape = (columns, rows) if transposed else (rows, columns)
    yield Weight(f"{ours}.weight", tuple(Part(f"{name}.weight", shape) for name in theirs), transposed)
    if bias:
        yield Weight(f"{ours}.bias", tuple(Part(f"{name}.bias", (rows,)) for name in theirs))


def norm(ours: str, theirs: str, width: int, *, bias: bool = True) -> Iterator[Weight]:
    """The lines of a norm."""
    for name in ("weight", "bias") if bias else ("weight",):
        yield Weight(f"{ours}.{name}", (Part(f"{theirs}.{name}", (width,)),))


def table(ours: str, theirs: str, rows: int, width: int) -> Weight:
    """The line of a table of embeddings."""
    return Weight(f"{ours}.weight", (Part(f"{theirs}.weight", (rows, width)),))


def require(kind: str, config: object, **wanted: object) -> None:
    """Refuse a config that this kind of checkpoint cannot express."""
    for name, value in wanted.items():
        if getattr(config, name) != value:
            raise CheckpointError(
                f"a {kind} checkpoint has {name} = {value!r}, but this model has {getattr(config, name)!r}"
            )


def refuse_dropout(kind: str, config: DecoderConfig) -> None:
    """Refuse to forget dropout in silence."""
    if config.dropout:
        raise CheckpointError(
            f"a {kind} checkpoint has no field for dropout, but this model has {config.dropout}. It only matters in "
            "training; to save the model without it, set model.config = dataclasses.replace(model.config, dropout=0.0)"
        )
