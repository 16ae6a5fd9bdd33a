"""Convert the mask predicates of transformers to `Mask`, without building dense masks.

In: the arguments of a mask function of `AttentionMaskInterface`: a predicate made of known functions (causal, sliding
window, chunks, packed sequences, padding), sizes and offsets. Out: a `LazyMask`, which a model passes to its layers
like a tensor, and which gives a `Mask` for any rows and columns.
Does not know: models, the recorder. Memory: O(n). An unknown predicate is evaluated by transformers into booleans, up
to a limit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Padding, Window, from_bool
from attnscope.attention.algebra import Mask
from attnscope.errors import UnsupportedError
from attnscope.extras import import_extra, unknown_version
from attnscope.recording.hooks.mask_tensors import UNBOUNDED, intersect

MAX_CELLS = 2**28  # of an unknown predicate, one byte each
NEVER_SKIPPED = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
"""Otherwise transformers replaces some masks by None and a flag."""


class LazyMask:
    """The arguments of a mask function, from which masks are made later.

    It has what model code usually needs of a mask tensor: a shape, a device, and `to` and `contiguous`, which return
    itself. All other operations are applied to the dense mask of the model.
    """

    ndim = 4

    def __init__(self, arguments: Mapping[str, Any], dense: Callable[[Mapping[str, Any]], Tensor | None]) -> None:
        self.arguments = arguments = with_sizes(arguments)
        self._dense = lambda arguments: dense(without_sizes(arguments))
        self._masks: dict[tuple[range, range], Mask] = {}
        self.row, self.column = int(arguments.get("q_offset", 0)), int(arguments.get("kv_offset", 0))
        sizes = (arguments["batch_size"], 1, arguments["q_length"], arguments["kv_length"])
        self.shape = torch.Size(map(int, sizes))
        self.device = torch.device(arguments.get("device", "cpu"))

    def tensor(self) -> Tensor | None:
        """The mask for the model's own implementation."""
        return self._dense(self.arguments)

    def slice(self, rows: range, columns: range) -> Mask:
        """The mask of these query and key positions, cached for all layers."""
        if (rows, columns) not in self._masks:
            self._masks[rows, columns] = self._slice(rows, columns)
        return self._masks[rows, columns]

    def _slice(self, rows: range, columns: range) -> Mask:
        reader = _PredicateReader(rows, columns, self)
        mask = reader.read(self.arguments["mask_function"])
        padding = self.arguments.get("attention_mask")
        return mask if padding is None else intersect(mask, reader.padding(padding))

    def is_consistent_with(self, other: object) -> bool:
        """Whether another mask of the same text agrees on the positions that both have."""
        if not isinstance(other, LazyMask) or self.column > other.column + other.shape[3]:
            return False
        mine, theirs = (one.arguments.get("attention_mask") for one in (self, other))
        return _same(mine, theirs) and _same(self.arguments["mask_function"], other.arguments["mask_function"])

    @cached_property
    def has_future_keys(self) -> bool:
        """Whether a query may attend to later keys."""
        return not _is_causal(self.arguments["mask_function"])

    def contiguous(self, *_: object, **__: object) -> LazyMask:
        return self

    def to(self, *_: object, **__: object) -> LazyMask:
        return self

    def size(self, axis: int | None = None) -> torch.Size | int:
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        return self.ndim

    def __getitem__(self, index: Any) -> Tensor:
        return self._materialize()[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._materialize(), name)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def real(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(real, value))
            return value._materialize() if isinstance(value, LazyMask) else value

        return function(*map(real, args), **{name: real(value) for name, value in (kwargs or {}).items()})

    def _materialize(self) -> Tensor:
        """The dense mask, for model code that changes masks; never None."""
        _check_size(self.arguments)
        tensor = self._dense({**self.arguments, **NEVER_SKIPPED})
        assert tensor is not None
        return tensor


def _operator(name: str) -> Callable[..., Any]:
    return lambda mask, *others: getattr(mask._materialize(), name)(*others)


for _name in (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "invert",
    "neg",
    "and",
    "or",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
):
    setattr(LazyMask, f"__{_name}__", _operator(f"__{_name}__"))  # Python does not look these up by __getattr__


def with_sizes(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a mask function with q_length and q_offset, which transformers 5.0 to 5.3 pass as positions."""
    positions = arguments.get("cache_position")
    for name in ("batch_size", "kv_length", "mask_function", *(("q_length",) if positions is None else ())):
        if name not in arguments:
            raise unknown_version("transformers", f"argument {name!r} of mask functions")
    if positions is None or "q_length" in arguments:
        return arguments
    offset, length = int(positions[0]), len(positions)
    if not torch.equal(positions, torch.arange(offset, offset + length, device=positions.device)):
        raise UnsupportedError(
            "record: the queries of this pass are not at consecutive positions (cache_position); "
            "record a pass over consecutive tokens"
        )
    return {**arguments, "q_length": length, "q_offset": offset, "device": positions.device}


def without_sizes(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the installed transformers names them: the reverse of `with_sizes`."""
    if "cache_position" not in arguments:
        return arguments
    theirs = {name: value for name, value in arguments.items() if name not in ("q_length", "q_offset", "device")}
    first, length = arguments["q_offset"], arguments["q_length"]
    return {**theirs, "cache_position": torch.arange(first, first + length, device=arguments["device"])}


def dense_mask(arguments: Mapping[str, Any]) -> Tensor:
    """Booleans (batch, 1, queries, keys), computed by transformers."""
    _check_size(arguments)
    return import_extra("transformers.masking_utils").sdpa_mask(**{**without_sizes(arguments), **NEVER_SKIPPED})


def _check_size(arguments: Mapping[str, Any]) -> None:
    cells = int(arguments["batch_size"]) * int(arguments["q_length"]) * int(arguments["kv_length"])
    if cells > MAX_CELLS:
        raise UnsupportedError(
            f"record: this model uses an unknown mask function, which needs a dense mask of {cells:,} cells; expected "
            f"at most {MAX_CELLS:,}. Record a shorter text or a smaller batch"
        )


class _PredicateReader:
    """Converts predicates to masks, for some rows and columns of a text."""

    def __init__(self, rows: range, columns: range, lazy: LazyMask) -> None:
        self.rows, self.columns, self.lazy = rows, columns, lazy
        self.offset = rows.start - columns.start
        self.aligned = self.offset == len(columns) - len(rows)

    def read(self, predicate: Callable) -> Mask:
        """The mask of a predicate."""
        try:
            mask = self.read_known(_kind(predicate), inspect.getclosurevars(predicate).nonlocals)
        except KeyError:  # another version of transformers names its variables differently
            mask = None
        return self.cells(predicate) if mask is None else mask

    def read_known(self, kind: str, variables: Mapping[str, Any]) -> Mask | None:
        """The mask of a predicate of this kind with these closure variables; None for an unknown kind."""
        offset = None if self.aligned else self.offset
        if kind in ("and_masks", "or_masks"):
            return reduce(intersect if kind == "and_masks" else or_, map(self.read, variables["mask_functions"]))
        if kind == "causal_mask_function":
            return Causal(offset)
        if kind == "bidirectional_mask_function":
            return Full()
        if kind == "sliding_window_overlay":
            return Window(before=variables["sliding_window"] - 1, after=UNBOUNDED, offset=offset)
        if kind == "sliding_window_bidirectional_overlay":
            return Window(before=variables["sliding_window"], after=variables["sliding_window"], offset=offset)
        if kind == "chunked_overlay":
            return self.chunks(variables["chunk_size"], variables["left_padding"])
        if kind == "packed_sequence_mask_function":
            return self.documents(variables["packed_sequence_mask"])
        if kind == "blockwise_overlay":
            ids = variables["block_sequence_ids"]
            return intersect(self.documents(ids), self.padding(ids >= 0))
        if kind == "padding_mask_function":
            return self.padding(variables["padding_mask"])
        return None

    def chunks(self, size: int, left_padding: Tensor) -> Mask:
        last = max(self.rows.stop, self.columns.stop)
        positions = torch.arange(last, device=left_padding.device)
        return self.documents((positions - left_padding[:, None]).div(size, rounding_mode="floor"))

    def documents(self, ids: Tensor) -> Mask:
        last = self.aligned and len(self.rows) <= len(self.columns)  # then the queries are the last of the keys
        queries = None if last else _cut(ids, self.rows, fill=-2)
        return Documents(_cut(ids, self.columns, fill=-1), queries)

    def padding(self, keep: Tensor) -> Mask:
        keep = _cut(keep.to(torch.bool), self.columns, fill=False)
        return Full() if bool(keep.all()) else Padding(keep=keep)

    def cells(self, predicate: Callable) -> Mask:
        """The mask of an unknown predicate, evaluated for each cell."""
        arguments = {
            **self.lazy.arguments,
            "mask_function": predicate,
            "attention_mask": None,
            "q_length": len(self.rows),
            "kv_length": len(self.columns),
            "q_offset": self.rows.start,
            "kv_offset": self.columns.start,
        }
        return from_bool(attend=dense_mask(arguments))


def _cut(table: Tensor, positions: range, *, fill: float) -> Tensor:
    """Some columns of (batch, positions), padded if the table is too short."""
    part = table[:, positions.start : positions.stop]
    return torch.nn.functional.pad(part, (0, len(positions) - part.shape[1]), value=fill)


def _kind(predicate: Callable) -> str:
    """The name of the transformers function that made a predicate; "" for a predicate of other code."""
    if getattr(predicate, "__module__", "") != "transformers.masking_utils":
        return ""
    return predicate.__qualname__.split(".")[0]


def _same(first: Any, second: Any) -> bool:
    """Whether two predicates, or their closure variables, are the same; tensors are compared up to the shorter one."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        length = min(first.shape[-1], second.shape[-1])
        return torch.equal(first[..., :length], second[..., :length])
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    if callable(first) and callable(second) and first is not second:
        kinds = {_kind(first), _kind(second)}
        variables, others = (inspect.getclosurevars(one).nonlocals for one in (first, second))
        return (
            len(kinds) == 1
            and "" not in kinds
            and variables.keys() == others.keys()
            and all(_same(variables[name], others[name]) for name in variables)
        )
    return first is second or (type(first) is type(second) and bool(first == second))


def _is_causal(predicate: Callable) -> bool:
    kind = _kind(predicate)
    if kind == "and_masks":
        return any(map(_is_causal, inspect.getclosurevars(predicate).nonlocals.get("mask_functions", ())))
    return kind == "causal_mask_function"
