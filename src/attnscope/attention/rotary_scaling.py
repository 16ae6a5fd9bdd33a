"""How fast each pair of a rotary head turns, and how the turning is slowed for texts longer than the training's.

In: the rotated width and the base. Out: one angle a position for each pair of coordinates, in float64, and an
`amplitude` that multiplies cosine and sine (1 except for YaRN).
Does not know: positions, queries, keys. Memory: O(dim), whatever the length.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """What a scaling answers: the slowed frequencies, and the amplitude of the rotation."""

    @property
    def amplitude(self) -> float: ...

    def frequencies(self, dim: int, base: float) -> Tensor: ...


def plain_frequencies(dim: int, base: float) -> Tensor:
    """Radians a position for each pair i of `dim` coordinates: base^(-2i / dim), shape (dim / 2,), float64.

    >>> plain_frequencies(4, 10000.0)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    # Su et al. 2021, arXiv:2104.09864, equation 15. On the CPU, because some devices have no float64.
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every pair turns `factor` times slower, as if positions were squeezed together (arXiv:2306.15595).

    >>> LinearScaling(factor=4.0).frequencies(4, 10000.0)
    tensor([0.2500, 0.0025], dtype=torch.float64)
    """

    factor: float
    """How many times longer the text may be than in training."""

    amplitude = 1.0

    def __post_init__(self):
        _require_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        return plain_frequencies(dim, base) / self.factor


@dataclass(frozen=True, kw_only=True)
class NTKScaling:
    """A larger base: the slowest pair turns `factor` times slower, the fastest keeps its pace (arXiv:2309.00071, 3.1).

    >>> NTKScaling(factor=4.0).frequencies(4, 10000.0)
    tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    factor: float
    """How many times longer the text may be than in training; fixed, whatever the length at hand."""

    amplitude = 1.0

    def __post_init__(self):
        _require_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        if dim <= 2:
            raise ValueError(
                f"NTKScaling changes the pairs after the first, but dim {dim} has only one; use LinearScaling"
            )
        return plain_frequencies(dim, base * self.factor ** (dim / (dim - 2)))


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Slow pairs turn `factor` times slower, fast ones keep their pace, with a ramp between (Llama 3.1).

    >>> Llama3Scaling(factor=4.0, original_length=512).frequencies(4, 10000.0)
    tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    factor: float
    """How many times slower the slow pairs turn."""
    original_length: int
    """The length of the training texts."""
    low_frequency_factor: float = 1.0
    """A pair with fewer turns than this over the original length is slow."""
    high_frequency_factor: float = 4.0
    """A pair with more turns than this over the original length is fast."""

    amplitude = 1.0

    def __post_init__(self):
        _require_positive(self, "factor", "original_length", "low_frequency_factor", "high_frequency_factor")
        _require_order(self, "low_frequency_factor", "high_frequency_factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        plain = plain_frequencies(dim, base)
        turns = self.original_length * plain / (2 * math.pi)
        fast = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return _blend(plain, plain / self.factor, keep=fast.clamp(0, 1))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """Slow pairs turn `factor` times slower, fast ones keep their pace, and scores grow a little (arXiv:2309.00071).

    >>> yarn = YarnScaling(factor=4.0, original_length=4096)
    >>> yarn.frequencies(4, 10000.0)
    tensor([1.0000, 0.0063], dtype=torch.float64)
    >>> round(yarn.amplitude, 4)
    1.1386
    """

    factor: float
    """How many times longer the text may be than in training."""
    original_length: int
    """The length of the training texts."""
    beta_fast: float = 32.0
    """A pair with more turns than this over the original length keeps its pace."""
    beta_slow: float = 1.0
    """A pair with fewer turns than this over the original length is slowed in full."""
    attention_factor: float | None = None
    """The amplitude, if the checkpoint states it."""
    mscale: float | None = None
    """With `mscale_all_dim`, DeepSeek's rule for the amplitude; either one alone, or a zero, changes nothing."""
    mscale_all_dim: float | None = None
    """See `mscale`."""
    truncate: bool = True
    """Whether the ends of the ramp are widened to whole pairs, as most checkpoints were trained."""

    def __post_init__(self):
        _require_positive(self, "factor", "original_length", "beta_fast", "beta_slow")
        _require_order(self, "beta_slow", "beta_fast")

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_growth(self.factor, self.mscale) / _yarn_growth(self.factor, self.mscale_all_dim)
        return _yarn_growth(self.factor, 1.0)

    def frequencies(self, dim: int, base: float) -> Tensor:
        plain = plain_frequencies(dim, base)
        first = self._pair_with_turns(self.beta_fast, dim, base)
        last = self._pair_with_turns(self.beta_slow, dim, base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The bound dim - 1 counts coordinates where pairs are meant; checkpoints were trained with it, so it stays.
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first or 0.001
        slow = ((torch.arange(dim // 2, dtype=torch.float64, device="cpu") - first) / width).clamp(0, 1)
        return _blend(plain, plain / self.factor, keep=1 - slow)

    def _pair_with_turns(self, turns: float, dim: int, base: float) -> float:
        """The (fractional) pair that makes so many full turns over the original length."""
        return dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))


def _blend(plain: Tensor, slowed: Tensor, *, keep: Tensor) -> Tensor:
    return plain * keep + slowed * (1 - keep)


def _yarn_growth(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _require_positive(scaling: object, *names: str) -> None:
    for name in names:
        if getattr(scaling, name) <= 0:
            raise ValueError(f"{type(scaling).__name__}.{name} must be positive, but is {getattr(scaling, name)}")


def _require_order(scaling: object, lower: str, upper: str) -> None:
    if getattr(scaling, lower) >= getattr(scaling, upper):
        raise ValueError(
            f"{type(scaling).__name__}.{lower} must be below {upper}, "
            f"but they are {getattr(scaling, lower)} and {getattr(scaling, upper)}"
        )
