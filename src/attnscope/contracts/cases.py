"""A small set of attentions that covers masks, scores, dtypes, grouped heads, head dims and lengths in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Bias,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    ScoreMod,
    Sinks,
    Softcap,
    Temperature,
    Window,
    from_bool,
)
from attnscope.attention.algebra import Sizes
from attnscope.attention.float64 import WITHOUT_FLOAT64
from attnscope.contracts.dense import DenseAttention, Formula, dense_attention

BATCH = 2
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Score(NamedTuple):
    """A score modifier made from parameters, and the same as a plain formula."""

    make: Callable[[Mapping[str, Tensor]], ScoreMod | None]
    formula: Formula | None = None
    parameters: tuple[str, ...] = ()


def _scattered_keys(sizes: Sizes) -> Tensor:
    keep = torch.rand(sizes.batch, sizes.keys, generator=torch.Generator().manual_seed(1)) > 0.5
    keep[:, : sizes.keys * 2 // 3] = False  # the first causal rows attend to no key
    return keep


def _every_third(sizes: Sizes) -> Tensor:
    return torch.arange(sizes.queries * sizes.keys).reshape(sizes.queries, sizes.keys) % 3 == 0


MASKS: dict[str, Callable[[Sizes], Mask]] = {
    "full": lambda _: Full(),
    "causal": lambda _: Causal(),
    "window": lambda _: Window(20),
    "two-sided window": lambda _: Window(before=9, after=9),
    "prefix": lambda sizes: Causal() | Prefix([sizes.keys // 4, sizes.keys // 2]),
    "documents": lambda sizes: Causal() & Documents(torch.arange(sizes.keys) // 23),
    "padding": lambda sizes: Padding([sizes.keys, sizes.keys // 3]),
    "left padding": lambda sizes: Causal() & Padding(keep=torch.arange(sizes.keys) >= torch.tensor([[7], [0]])),
    "rows without keys": lambda sizes: Causal() & Padding(keep=_scattered_keys(sizes)),
    "booleans": lambda sizes: from_bool(drop=_every_third(sizes)),
}


def _subtract_slopes(scores: Tensor, leaves: Mapping[str, Tensor]) -> Tensor:
    queries, keys = scores.shape[-2:]
    away = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
    return scores - leaves["slopes"][:, None, None] * away.to(scores)


def _softcap(scores: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(scores / cap)


SCORES: dict[str, Score] = {
    "plain": Score(lambda _: None),
    "softcap": Score(lambda _: Softcap(1.5), lambda scores, _: _softcap(scores, 1.5)),
    "alibi": Score(lambda leaves: ALiBi(leaves["slopes"]), _subtract_slopes, ("slopes",)),
    "bias": Score(lambda leaves: Bias(leaves["bias"]), lambda scores, leaves: scores + leaves["bias"], ("bias",)),
    "sinks": Score(lambda leaves: Sinks(leaves["sinks"]), None, ("sinks",)),
    "several": Score(
        lambda leaves: Softcap(2.0) + ALiBi(leaves["slopes"]) + Temperature(1.7) + Sinks(leaves["sinks"]),
        lambda scores, leaves: _subtract_slopes(_softcap(scores, 2.0), leaves) / 1.7,
        ("slopes", "sinks"),
    ),
}
FACTORS: Mapping[str, Sequence] = {
    "mask": tuple(MASKS),
    "score": tuple(SCORES),
    "heads": ((4, 4), (4, 2), (4, 1)),
    "dim": (16, 64, 80, 128, 256),
    "lengths": ((67, 67), (35, 131), (1, 50)),
}


class Case(NamedTuple):
    """One attention, by the names of its parts."""

    dtype: torch.dtype
    mask: str
    score: str
    heads: tuple[int, int]  #: heads and key-value heads
    dim: int
    lengths: tuple[int, int]  #: queries and keys

    def __str__(self) -> str:
        heads, lengths = "/".join(map(str, self.heads)), "x".join(map(str, self.lengths))
        return f"{self.mask}, {self.score}, {dtype_name(self.dtype)}, {lengths}, heads {heads}, dim {self.dim}"

    @property
    def sizes(self) -> Sizes:
        """The shape of the attention matrix."""
        return Sizes(BATCH, self.heads[0], *self.lengths)

    def make_mask(self) -> Mask:
        """Return the mask as an object of the library."""
        return MASKS[self.mask](self.sizes)

    def make_leaves(self, seed: int = 0) -> dict[str, Tensor]:
        """Return random query, key, value and parameters of the scores, on the CPU."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        (heads, key_heads), (queries, keys) = self.heads, self.lengths
        leaves = {"query": normal(BATCH, heads, queries, self.dim)}
        leaves |= {name: normal(BATCH, key_heads, keys, self.dim) for name in ("key", "value")}
        parameters = {
            "slopes": 0.1 * (1 + torch.arange(heads, dtype=torch.float64)),
            "bias": normal(heads, queries, keys),
            "sinks": normal(heads),
        }
        leaves |= {name: parameters[name] for name in SCORES[self.score].parameters}
        return {name: leaf.to(self.dtype) for name, leaf in leaves.items()}

    def run_dense(self, leaves: Mapping[str, Tensor]) -> DenseAttention:
        """Compute the attention densely, in the dtype of the leaves."""
        return dense_attention(leaves, self.make_mask().to_dense(self.sizes), SCORES[self.score].formula)

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.dim)


def supported_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the dtypes that a device has."""
    return tuple(dtype for dtype in DTYPES if dtype != torch.float64 or device.type not in WITHOUT_FLOAT64)


def covering_cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    """Return cases in which each pair of values of two factors occurs, with the dtype as one of the factors."""
    return [Case(**values) for values in covering_array({"dtype": dtypes, **FACTORS}, strength=2)]


def covering_array(factors: Mapping[str, Sequence], strength: int, seed: int = 0) -> list[dict]:
    """Return rows in which each combination of values of `strength` factors occurs, by a greedy search.

    >>> rows = covering_array({"a": [0, 1], "b": [0, 1]}, strength=1)
    >>> len(rows), {row["a"] for row in rows}, {row["b"] for row in rows}
    (2, {0, 1}, {0, 1})
    """
    names, random = list(factors), Random(seed)
    missing = dict.fromkeys(
        tuple(zip(chosen, values, strict=True))
        for chosen in combinations(names, strength)
        for values in product(*(factors[name] for name in chosen))
    )
    rows = []
    while missing:
        wanted = dict(next(iter(missing)))
        best, best_covered = {}, set()
        for _ in range(20):
            row = {name: wanted.get(name, random.choice(list(factors[name]))) for name in names}
            covered = {tuple((name, row[name]) for name in chosen) for chosen in combinations(names, strength)}
            if len(covered & missing.keys()) > len(best_covered):
                best, best_covered = row, covered & missing.keys()
        for found in best_covered:
            del missing[found]
        rows.append(best)
    return rows


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
