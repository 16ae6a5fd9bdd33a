"""The masks of transformers models as ours, without ever building one.

In: what `AttentionMaskInterface` hands to a mask function: a predicate made of known pieces (causal, window, chunks,
packed texts, padding), sizes and offsets. Out: a `LazyMask`, which a model passes on to its layers as if it were a
tensor, and which answers as a `Mask` for any rows and columns.
Does not know: models, the recorder. Memory: O(n). A predicate that is not known is evaluated by transformers' own code
into booleans, up to a limit.
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
from attnscope.recording.hooks.mask_tensors import FAR, both

MAX_CELLS = 2**28  # of a predicate that is not known, each a byte
NEVER_SKIPPED = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
"""Otherwise a mask that a flag could say as well becomes None, and is lost."""


class LazyMask:
    """The arguments of a mask function, to be answered from later.

    It has what models ask of a mask on its way to the layers: a shape, a device, and copies that are itself. Whatever
    else is done with it happens to the tensor that the model would have had.
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
        """What the model's own implementation would have got."""
        return self._dense(self.arguments)

    def slice(self, rows: range, columns: range) -> Mask:
        """The mask of these positions of queries and keys, one for all layers."""
        if (rows, columns) not in self._masks:
            self._masks[rows, columns] = self._slice(rows, columns)
        return self._masks[rows, columns]

    def _slice(self, rows: range, columns: range) -> Mask:
        where = _Where(rows, columns, self)
        mask = where.read(self.arguments["mask_function"])
        padding = self.arguments.get("attention_mask")
        return mask if padding is None else both(mask, where.padding(padding))

    def is_consistent_with(self, other: object) -> bool:
        """Whether another mask of the same text says the same about what both know."""
        if not isinstance(other, LazyMask) or self.column > other.column + other.shape[3]:
            return False
        mine, theirs = (one.arguments.get("attention_mask") for one in (self, other))
        return _same(mine, theirs) and _same(self.arguments["mask_function"], other.arguments["mask_function"])

    @cached_property
    def has_future_keys(self) -> bool:
        """Whether a query may see keys behind its own position."""
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
        return self._needed()[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._needed(), name)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def real(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(real, value))
            return value._needed() if isinstance(value, LazyMask) else value

        return function(*map(real, args), **{name: real(value) for name, value in (kwargs or {}).items()})

    def _needed(self) -> Tensor:
        """The tensor, for code that changes masks itself; never None, so that nothing is lost on the way."""
        _refuse_huge(self.arguments)
        tensor = self._dense({**self.arguments, **NEVER_SKIPPED})
        assert tensor is not None
        return tensor


def _operator(name: str) -> Callable[..., Any]:
    return lambda mask, *others: getattr(mask._needed(), name)(*others)


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
    setattr(LazyMask, f"__{_name}__", _operator(f"__{_name}__"))  # Python does not ask __getattr__ for these


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
            "record: the queries of this pass do not stand at consecutive positions (cache_position); "
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
    """Booleans (batch, 1, queries, keys) by transformers' own code."""
    _refuse_huge(arguments)
    return import_extra("transformers.masking_utils").sdpa_mask(**{**without_sizes(arguments), **NEVER_SKIPPED})


def _refuse_huge(arguments: Mapping[str, Any]) -> None:
    cells = int(arguments["batch_size"]) * int(arguments["q_length"]) * int(arguments["kv_length"])
    if cells > MAX_CELLS:
        raise UnsupportedError(
            f"record: this model uses a mask that is only known cell by cell, and has {cells:,} cells of it; at most "
            f"{MAX_CELLS:,} are built. Record a shorter text or fewer texts at once"
        )


class _Where:
    """Reads predicates for some rows and columns of a text."""

    def __init__(self, rows: range, columns: range, lazy: LazyMask) -> None:
        self.rows, self.columns, self.lazy = rows, columns, lazy
        self.offset = rows.start - columns.start
        self.aligned = self.offset == len(columns) - len(rows)

    def read(self, predicate: Callable) -> Mask:
        """One predicate of transformers as a mask."""
        try:
            mask = self.known(_kind(predicate), inspect.getclosurevars(predicate).nonlocals)
        except KeyError:  # another version of transformers names its variables differently
            mask = None
        return self.cells(predicate) if mask is None else mask

    def known(self, kind: str, held: Mapping[str, Any]) -> Mask | None:
        """A predicate of this kind with these variables as a mask; None for a kind that is not known."""
        offset = None if self.aligned else self.offset
        if kind in ("and_masks", "or_masks"):
            return reduce(both if kind == "and_masks" else or_, map(self.read, held["mask_functions"]))
        if kind == "causal_mask_function":
            return Causal(offset)
        if kind == "bidirectional_mask_function":
            return Full()
        if kind == "sliding_window_overlay":
            return Window(before=held["sliding_window"] - 1, after=FAR, offset=offset)
        if kind == "sliding_window_bidirectional_overlay":
            return Window(before=held["sliding_window"], after=held["sliding_window"], offset=offset)
        if kind == "chunked_overlay":
            return self.chunks(held["chunk_size"], held["left_padding"])
        if kind == "packed_sequence_mask_function":
            return self.documents(held["packed_sequence_mask"])
        if kind == "blockwise_overlay":
            ids = held["block_sequence_ids"]
            return both(self.documents(ids), self.padding(ids >= 0))
        if kind == "padding_mask_function":
            return self.padding(held["padding_mask"])
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
        """A predicate that is not known, cell by cell."""
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
    """Some columns of (batch, positions), filled up where the table is too short."""
    part = table[:, positions.start : positions.stop]
    return torch.nn.functional.pad(part, (0, len(positions) - part.shape[1]), value=fill)


def _kind(predicate: Callable) -> str:
    """The function of transformers that made this predicate, or "" for one from elsewhere."""
    if getattr(predicate, "__module__", "") != "transformers.masking_utils":
        return ""
    return predicate.__qualname__.split(".")[0]


def _same(first: Any, second: Any) -> bool:
    """Whether two predicates, or what they hold, are the same; tensors as far as both go."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        length = min(first.shape[-1], second.shape[-1])
        return torch.equal(first[..., :length], second[..., :length])
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    if callable(first) and callable(second) and first is not second:
        kinds = {_kind(first), _kind(second)}
        held, other = (inspect.getclosurevars(one).nonlocals for one in (first, second))
        return (
            len(kinds) == 1
            and "" not in kinds
            and held.keys() == other.keys()
            and all(_same(held[name], other[name]) for name in held)
        )
    return first is second or (type(first) is type(second) and bool(first == second))


def _is_causal(predicate: Callable) -> bool:
    kind = _kind(predicate)
    if kind == "and_masks":
        return any(map(_is_causal, inspect.getclosurevars(predicate).nonlocals.get("mask_functions", ())))
    return kind == "causal_mask_function"
