"""Select layers and heads by index or name, for the arguments `layers=` and `heads=`.

In: the arguments, and the names of a model's modules. Out: whether a layer is selected, and which of its heads.
Does not know: attention, tensors. Memory: O(modules).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from attnscope.errors import SettingError

Wanted = int | str
Heads = int | Sequence[int] | Mapping[int, Sequence[int]] | Mapping[str, Sequence[int]] | Mapping[Wanted, Sequence[int]]


class Selection:
    """Selects layers by index (the first number in their name; negative from the end) or by name (`*` is a wildcard).

    >>> Selection([3, "*.encoder_attn"], None).has("model.layers.3.self_attn")
    True
    """

    def __init__(
        self, layers: Iterable[Wanted] | Wanted | None, heads: Heads | None, *, caller: str = "record"
    ) -> None:
        """`caller` is the function that error messages name."""
        self._caller = caller
        if isinstance(layers, int | str):
            layers = (layers,)
        self._layers = None if layers is None else tuple(layers)
        self._heads = (heads,) if isinstance(heads, int) else heads
        if self._layers is None and isinstance(heads, Mapping):
            self._layers = tuple(heads)

    def has(self, name: str) -> bool:
        """Whether a layer is selected."""
        return self._layers is None or any(matches(name, wanted) for wanted in self._layers)

    def heads_of(self, name: str, count: int) -> list[int] | None:
        """The selected heads of a layer with `count` heads; None for all."""
        chosen = self._heads
        if isinstance(chosen, Mapping):
            found = [head for wanted, heads in chosen.items() if matches(name, wanted) for head in heads]
            chosen = list(dict.fromkeys(found)) if found else None
        if chosen is None:
            return None
        wrong = [head for head in chosen if not -count <= head < count]
        if wrong or not len(chosen):
            got = f"head {wrong[0]}" if wrong else "none"
            raise SettingError(f"{self._caller}: expected heads 0 to {count - 1} of {name}, got {got}")
        return list(dict.fromkeys(head % count for head in chosen))

    def check(self, names: Iterable[str]) -> None:
        """Resolve negative layer indices, and raise SettingError for a layer that the model does not have."""
        names = list(names)
        if self._layers is not None:
            self._layers = tuple(resolve_layer(wanted, names) for wanted in self._layers)
        if isinstance(self._heads, Mapping):
            self._heads = heads_by_layer(self._heads, names)
        for wanted in self._layers or ():
            if not any(matches(name, wanted) for name in names):
                raise SettingError(
                    f"{self._caller}: no module of the model matches layer {wanted!r}; an index is the first number in "
                    "a module name, such as 3 in model.layers.3.self_attn, and a name may contain * as a wildcard"
                )


def resolve_layer(wanted: Wanted, names: Iterable[str]) -> Wanted:
    """Resolve a negative layer index, which counts from the last layer of these module names.

    >>> resolve_layer(-1, ["model.layers.0.self_attn", "model.layers.11.self_attn"])
    11
    """
    if isinstance(wanted, str) or wanted >= 0:
        return wanted
    last = max((number for name in names if (number := _number(name)) is not None), default=-1)
    return last + 1 + wanted if last + 1 + wanted >= 0 else wanted


def heads_by_layer(heads: Mapping[Any, Sequence[int]], names: Collection[str]) -> dict[Wanted, list[int]]:
    """Resolve negative layer indices; the heads of a layer that is given twice are merged."""
    found: dict[Wanted, list[int]] = {}
    for wanted, some in heads.items():
        found.setdefault(resolve_layer(wanted, names), []).extend(some)
    return found


def matches(name: str, wanted: Wanted) -> bool:
    """Whether a module name matches an index or a name.

    >>> matches("h.11.attn", 11), matches("h.11.attn", "h.*"), matches("h.11.attn", "attn")
    (True, True, False)
    """
    if isinstance(wanted, str):
        return name == wanted or fnmatchcase(name, wanted)
    return _number(name) == wanted


def _number(name: str) -> int | None:
    """The first number in the name of a module."""
    number = re.search(r"\.(\d+)(?:\.|$)", name) or re.fullmatch(r"(\d+)", name)
    return None if number is None else int(number[1])
