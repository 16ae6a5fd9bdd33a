"""Limits on what a config may ask transformers to build, taken from the size of the files next to it.

In: the fields of a config.json, nested to any depth, and the tensors of its files. Out: nothing, or a `CheckpointError`
before memory is allocated. Counts in the config are compared first; modules and parameters are counted while the model
is built, by torch's registration hooks, of which only the thread that builds takes notice.
Does not know: files, families. Memory: O(fields).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from threading import Lock
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.modules import module as registration

from attnscope.errors import CheckpointError
from attnscope.models.checkpoint.safetensors_files import StoredTensor
from attnscope.models.json_fields import short_repr

LAYERS = re.compile(r"(layers?|depths?|blocks|stages|experts|labels)$", re.IGNORECASE)
"""Names of fields that say how often something is repeated."""

MIN_REPEATS = 2**15
"""A field of LAYERS may always be as large as this; more takes that many rows of tensors in the files."""

MIN_ELEMENTS, ELEMENTS_PER_STORED = 2**26, 16
"""Numbers that any model may have in buffers, and how many 2-bit weights are stored as one 32-bit integer."""

MIN_MODULES, MODULES_PER_TENSOR = 4096, 64


class BuildLimits(NamedTuple):
    """What a model may have, given the tensors of its files."""

    repeats: int
    """Layers, and other things that are repeated."""
    modules: int
    elements: int
    """Numbers in parameters and buffers."""
    source: str
    """The config, for messages."""

    @classmethod
    def from_tensors(cls, tensors: Collection[StoredTensor], source: str) -> BuildLimits:
        """The limits for files with these tensors."""
        rows = sum(tensor.shape[0] if tensor.shape else 1 for tensor in tensors)
        return cls(
            repeats=max(MIN_REPEATS, rows),
            modules=MIN_MODULES + MODULES_PER_TENSOR * len(tensors),
            elements=MIN_ELEMENTS + ELEMENTS_PER_STORED * sum(prod(tensor.shape) for tensor in tensors),
            source=source,
        )

    def check_fields(self, fields: Mapping[str, Any]) -> None:
        """Raise for a count in the config that no model with these files has."""
        for name, number in _integers(fields):
            if number > self.repeats and LAYERS.search(name):
                raise CheckpointError(
                    f"{self.source}: {short_repr(name)[1:-1]}: expected at most {self.repeats:,} for files of this "
                    f"size, got {short_repr(number)}; they are incomplete or the config belongs to another model"
                )

    @contextmanager
    def enforce(self) -> Iterator[None]:
        """Raise as soon as a model that this thread builds has more modules or numbers than its files can fill."""
        with LOCK:
            _add_hooks()
        token = BUILD.set(_Build(self))
        try:
            yield
        finally:
            BUILD.reset(token)


class _Build:
    """A model that is being built: how much of it there is so far."""

    def __init__(self, limits: BuildLimits) -> None:
        self._limits, self._modules, self._elements = limits, 0, 0

    def add_module(self) -> None:
        self._modules += 1
        self._check(self._modules, self._limits.modules, "modules")

    def add_tensor(self, tensor: Tensor) -> None:
        self._elements += tensor.numel()
        self._check(self._elements, self._limits.elements, "numbers")

    def _check(self, found: int, limit: int, what: str) -> None:
        if found > limit:
            raise CheckpointError(
                f"{self._limits.source} describes a model of more than {limit:,} {what}, far more than its files "
                "hold; they are incomplete or the config belongs to another model"
            )


BUILD: ContextVar[_Build | None] = ContextVar("BUILD", default=None)
"""The model that this thread builds within limits, if any."""

LOCK = Lock()


@cache
def _add_hooks() -> None:
    """Add the hooks once and for good: torch iterates over its hooks without a lock, so they cannot come and go."""
    registration.register_module_module_registration_hook(_count_module)
    registration.register_module_parameter_registration_hook(_count_tensor)
    registration.register_module_buffer_registration_hook(_count_tensor)


def _count_module(*_: object) -> None:
    if (build := BUILD.get()) is not None:
        build.add_module()


def _count_tensor(_: object, __: str, tensor: Tensor | None) -> None:
    if tensor is not None and (build := BUILD.get()) is not None:
        build.add_tensor(tensor)


def _integers(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """All integers in an object, with the name of the field they are in; nesting may be deep."""
    waiting: list[tuple[str, Any]] = list(fields.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((name, entry) for entry in value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value
