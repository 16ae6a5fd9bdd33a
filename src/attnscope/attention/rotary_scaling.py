"""The frequencies of rotary position embeddings, and how they are scaled for contexts longer than in training.

In: the number of rotated coordinates and the base. Out: radians per position of each pair of coordinates, in float64,
and an `amplitude` that multiplies cosine and sine (1 except for YaRN).
Does not know: positions, queries, keys. Memory: O(dim), whatever the length.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """The interface of a scaling: scaled frequencies, and the amplitude of the rotation."""

    @property
    def amplitude(self) -> float: ...

    def frequencies(self, dim: int, base: float) -> Tensor: ...


def plain_frequencies(dim: int, base: float) -> Tensor:
    """Return the radians per position of each pair i of `dim` coordinates: base^(-2i / dim), (dim / 2,), float64.

    >>> plain_frequencies(4, 10000.0)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    # Su et al. 2021, arXiv:2104.09864, equation 15. On the CPU, because some devices have no float64.
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every pair rotates `factor` times slower (arXiv:2306.15595).

    >>> LinearScaling(factor=4.0).frequencies(4, 10000.0)
    tensor([0.2500, 0.0025], dtype=torch.float64)
    """

    factor: float
    """The ratio of the new context length to that of training."""

    amplitude = 1.0

    def __post_init__(self):
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        return plain_frequencies(dim, base) / self.factor


@dataclass(frozen=True, kw_only=True)
class NTKScaling:
    """NTK-aware scaling by a larger base: the slowest pair rotates `factor` times slower, the fastest is not changed
    (arXiv:2309.00071, section 3.1).

    >>> NTKScaling(factor=4.0).frequencies(4, 10000.0)
    tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    factor: float
    """The ratio of the new context length to that of training; it does not depend on the current length."""

    amplitude = 1.0

    def __post_init__(self):
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        if dim <= 2:
            raise ValueError(
                f"NTKScaling: expected dim >= 4, because the first pair is not changed, got {dim}; use LinearScaling"
            )
        return plain_frequencies(dim, base * self.factor ** (dim / (dim - 2)))


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Slow pairs rotate `factor` times slower, fast ones are not changed, with a ramp between (Llama 3.1).

    >>> Llama3Scaling(factor=4.0, original_length=512).frequencies(4, 10000.0)
    tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    factor: float
    """How many times slower the slow pairs rotate."""
    original_length: int
    """The context length of training."""
    low_frequency_factor: float = 1.0
    """A pair with fewer rotations than this over the original length is slow."""
    high_frequency_factor: float = 4.0
    """A pair with more rotations than this over the original length is fast."""

    amplitude = 1.0

    def __post_init__(self):
        _check_positive(self, "factor", "original_length", "low_frequency_factor", "high_frequency_factor")
        _check_order(self, "low_frequency_factor", "high_frequency_factor")

    def frequencies(self, dim: int, base: float) -> Tensor:
        plain = plain_frequencies(dim, base)
        rotations = self.original_length * plain / (2 * math.pi)
        fast = (rotations - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return _blend(plain, plain / self.factor, keep=fast.clamp(0, 1))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN: slow pairs rotate `factor` times slower, fast ones are not changed, and scores grow (arXiv:2309.00071).

    >>> yarn = YarnScaling(factor=4.0, original_length=4096)
    >>> yarn.frequencies(4, 10000.0)
    tensor([1.0000, 0.0063], dtype=torch.float64)
    >>> round(yarn.amplitude, 4)
    1.1386
    """

    factor: float
    """The ratio of the new context length to that of training."""
    original_length: int
    """The context length of training."""
    beta_fast: float = 32.0
    """A pair with more rotations than this over the original length is not changed."""
    beta_slow: float = 1.0
    """A pair with fewer rotations than this over the original length is scaled by the full factor."""
    attention_factor: float | None = None
    """The amplitude, if the checkpoint has one."""
    mscale: float | None = None
    """With `mscale_all_dim`, DeepSeek's rule for the amplitude; either one alone, or a zero, changes nothing."""
    mscale_all_dim: float | None = None
    """See `mscale`."""
    truncate: bool = True
    """Whether the ends of the ramp are widened to whole pairs, as most checkpoints were trained."""

    def __post_init__(self):
        _check_positive(self, "factor", "original_length", "beta_fast", "beta_slow")
        _check_order(self, "beta_slow", "beta_fast")

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_growth(self.factor, self.mscale) / _yarn_growth(self.factor, self.mscale_all_dim)
        return _yarn_growth(self.factor, 1.0)

    def frequencies(self, dim: int, base: float) -> Tensor:
        plain = plain_frequencies(dim, base)
        first = self._pair_with_rotations(self.beta_fast, dim, base)
        last = self._pair_with_rotations(self.beta_slow, dim, base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The bound dim - 1 counts coordinates where pairs are meant; checkpoints were trained with it, so it stays.
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first or 0.001
        slow = ((torch.arange(dim // 2, dtype=torch.float64, device="cpu") - first) / width).clamp(0, 1)
        return _blend(plain, plain / self.factor, keep=1 - slow)

    def _pair_with_rotations(self, rotations: float, dim: int, base: float) -> float:
        """Return the (fractional) pair with this many full rotations over the original length."""
        return dim * math.log(self.original_length / (rotations * 2 * math.pi)) / (2 * math.log(base))


def _blend(plain: Tensor, slowed: Tensor, *, keep: Tensor) -> Tensor:
    return plain * keep + slowed * (1 - keep)


def _yarn_growth(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _check_positive(scaling: object, *names: str) -> None:
    for name in names:
        if getattr(scaling, name) <= 0:
            raise ValueError(f"{type(scaling).__name__}: expected a positive {name}, got {getattr(scaling, name)}")


def _check_order(scaling: object, lower: str, upper: str) -> None:
    if getattr(scaling, lower) >= getattr(scaling, upper):
        raise ValueError(
            f"{type(scaling).__name__}: expected {lower} < {upper}, "
            f"got {getattr(scaling, lower)} and {getattr(scaling, upper)}"
        )
