"""Sampling of the next token.

In: logits (batch, vocab_size). Out: token ids (batch,).
Does not know: models, caches, text. Memory: a few copies of the logits.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.float64 import float64_device
from attnscope.errors import SettingError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is sampled; applied in the order temperature, top_k, top_p, min_p.

    Raises:
        SettingError: If a value is out of range.
    """

    temperature: float = 1.0
    """Divides the logits: below 1 the distribution is sharper; 0 is greedy decoding."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float | None = None
    """Keep the smallest set of most probable tokens with at least this total probability (nucleus sampling)."""
    min_p: float | None = None
    """Keep tokens with at least this fraction of the highest probability."""
    seed: int = 0
    """Random seed; each row of a batch has its own random stream."""

    def __post_init__(self):
        if not 0 <= self.temperature < math.inf:
            raise SettingError(f"Sampling.temperature must be at least 0 and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise SettingError(f"Sampling.top_k must be at least 1, got {self.top_k}")
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise SettingError(f"Sampling.{name} must be above 0 and at most 1, got {share}")


GREEDY = Sampling(temperature=0.0)
"""Greedy decoding: always the most probable token."""


class Sampler:
    """Samples tokens for a number of rows, each from its own random stream.

    >>> Sampler(GREEDY, rows=1).choose(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
    """

    def __init__(self, sampling: Sampling, rows: int):
        self.sampling = sampling
        # One stream per row, so that a row does not depend on how many others there are, or on how long they run.
        self._streams = [torch.Generator().manual_seed(_mix_seed(sampling.seed, row)) for row in range(rows)]

    def choose(self, logits: Tensor) -> Tensor:
        """Sample the next token of each row, (batch,), from logits (batch, vocab_size).

        Raises:
            UnsupportedError: If the logits are NaN or infinite.
        """
        if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
            raise UnsupportedError(
                "the next-token logits are NaN or infinite; the parameters are invalid, or too large for this dtype"
            )
        if self.sampling.temperature == 0:
            return logits.argmax(dim=-1)
        # Inverse transform: where the running sum of probabilities passes a uniform number. In float64, because
        # the steps of a float32 sum near 1 are larger than the probabilities of rare tokens.
        exact = float64_device(logits.device)
        running = probabilities(logits, self.sampling).to(exact).double().cumsum(dim=-1)
        draws = torch.stack([torch.rand((), generator=stream, dtype=torch.float64) for stream in self._streams])
        below = draws.to(exact)[:, None] * running[:, -1:]
        return torch.searchsorted(running, below, right=True)[:, 0].to(logits.device)


def _mix_seed(seed: int, row: int) -> int:
    """A seed for each pair, so that row 1 of seed 0 differs from row 0 of seed 1."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {row}".encode(), digest_size=8).digest(), "little", signed=True)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that tokens are sampled from, (batch, vocab_size), in float32; removed tokens are exactly 0.

    >>> probabilities(torch.tensor([[2.0, 1.0, 0.0]]), Sampling(top_k=2))
    tensor([[0.7311, 0.2689, 0.0000]])
    """
    logits = logits.float()
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature  # the maximum is 0
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        # Ties with the k-th are broken by topk itself, so exactly k tokens are left.
        largest = logits.topk(sampling.top_k, dim=-1).indices
        logits = torch.full_like(logits, -math.inf).scatter(-1, largest, logits.gather(-1, largest))
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        enough_before = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        # Back from sorted order to that of the vocabulary; scatter writes every entry.
        logits = logits.masked_fill(torch.empty_like(enough_before).scatter(-1, order, enough_before), -math.inf)
    shares = logits.softmax(dim=-1)
    if sampling.min_p is not None:
        shares = shares.masked_fill(shares < sampling.min_p * shares.amax(dim=-1, keepdim=True), 0.0)
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return shares
