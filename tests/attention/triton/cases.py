"""Attentions on which the Triton kernels are compared with dense code: masks x scores x dtypes x shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import NamedTuple

import torch

from attnscope.attention import ALiBi, Causal, Documents, Full, Padding, Prefix, Sinks, Softcap, Window
from attnscope.attention.algebra import Mask, Sizes
from attnscope.attention.scores import ScoreMod, Temperature

BATCH = 2


class Case(NamedTuple):
    """One attention, by the names of its parts."""

    mask: str
    scores: str
    dtype: str
    lengths: str
    heads: str
    dim: int
    far_apart: bool = False  #: the rows of query and key lie so far apart that offsets exceed 32 bits

    def __str__(self) -> str:
        return f"{self.mask}, {self.scores}, {self.dtype}, {self.lengths}, heads {self.heads}, dim {self.dim}" + (
            ", far apart" if self.far_apart else ""
        )


def documents(sizes: Sizes) -> Documents:
    """Three documents, with other lengths in the second batch row."""
    keys = torch.arange(sizes.keys)
    ids = torch.stack([keys // 23, keys // 31])
    return Documents(ids, ids[:, torch.arange(sizes.queries) * max(sizes.keys - 1, 1) // max(sizes.queries - 1, 1)])


MASKS: dict[str, Callable[[Sizes], Mask]] = {
    "full": lambda sizes: Full(),
    "causal": lambda sizes: Causal(),
    "window": lambda sizes: Window(19),
    "one key": lambda sizes: Window(1),
    "encoder window": lambda sizes: Window(before=7, after=21),
    "causal documents": lambda sizes: Causal() & documents(sizes),
    "documents": documents,
    "right padding": lambda sizes: Causal() & Padding([sizes.keys, sizes.keys // 3]),
    "left padding": lambda sizes: (
        Causal() & Padding(keep=torch.arange(sizes.keys) >= torch.tensor([[sizes.keys // 2], [3]]))
    ),
    "prefix": lambda sizes: Causal() | Prefix([5, 40]),
    "no keys": lambda sizes: Padding([0, sizes.keys]),
    "later keys": lambda sizes: ~Causal(),
}
SCORES: dict[str, Callable[[int], ScoreMod | None]] = {
    "plain": lambda heads: None,
    "softcap": lambda heads: Softcap(5.0),
    "alibi": lambda heads: ALiBi(heads, offset=3),
    "sinks": lambda heads: Sinks(torch.linspace(-3.0, 9.0, heads)),
    "everything": lambda heads: (
        Softcap(9.0) + Temperature(1.5) + ALiBi(heads) + Temperature(0.8) + Sinks(torch.linspace(4.0, -2.0, heads))
    ),
    "negative scale": lambda heads: None,
    "growing": lambda heads: None,
}
FACTORS: Mapping[str, Sequence[object]] = {
    "mask": tuple(MASKS),
    "scores": tuple(SCORES),
    "dtype": ("bfloat16", "float16", "float32"),
    "lengths": ("70x70", "37x70", "1x45", "64x64", "50x33"),
    "heads": ("4/2", "3/1", "2/2"),
    "dim": (32, 40, 64, 80),
}


def covering_array(factors: Mapping[str, Sequence[object]], strength: int, seed: int = 0) -> list[Case]:
    """Cases in which each combination of values of `strength` factors occurs, by a greedy search."""
    names, random = list(factors), Random(seed)
    missing = {
        tuple(zip(chosen, values, strict=True))
        for chosen in combinations(names, strength)
        for values in product(*(factors[name] for name in chosen))
    }
    cases = []
    for wanted in sorted(missing, key=repr):
        if wanted not in missing:
            continue
        tries = []
        for _ in range(20):
            values = {name: random.choice(list(factors[name])) for name in names} | dict(wanted)
            covered = {tuple((name, values[name]) for name in chosen) for chosen in combinations(names, strength)}
            tries.append((len(covered & missing), len(tries), values, covered))
        _, _, values, covered = max(tries, key=lambda one: one[:2])
        missing -= covered
        cases.append(Case(**values))
    return cases


EXTREMES = [
    Case("causal", "plain", "bfloat16", "37x70", "4/2", 128),
    Case("window", "everything", "float32", "37x70", "2/2", 256),
    Case("prefix", "softcap", "float16", "1x45", "3/1", 8),
]
LATER_MAXIMA = Case("causal", "growing", "float32", "37x70", "2/1", 40)
WITH_SINKS = Case("full", "sinks", "float32", "37x70", "2/2", 32)
TWO_TILES = Case("full", "plain", "float32", "70x70", "2/2", 32)
SOFTCAP = Case("causal", "softcap", "float32", "37x70", "2/2", 32)
ONE_KEY = Case("one key", "plain", "float32", "37x70", "2/2", 32)
FAR_APART = Case("causal", "plain", "float16", "37x70", "2/2", 32, far_apart=True)
FOR_SEEDED_BUGS = [LATER_MAXIMA, WITH_SINKS, TWO_TILES, SOFTCAP, ONE_KEY, FAR_APART]
THINNED = [*EXTREMES, *FOR_SEEDED_BUGS, *covering_array(FACTORS, 1)]
"""Every value at least once."""
ALL_TRIPLES = covering_array(FACTORS, 3)
"""Every combination of three values."""
