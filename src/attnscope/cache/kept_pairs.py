"""`score_pairs` and `PairScores.keep`: which key-value pairs of a context a policy keeps.

In: a trace of the context. Out: `KeptPairs`, one boolean for each pair of each layer. Budgets count key-value pairs in
the same way for all policies. Does not know: models. Memory: one number for each pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attnscope.cache.policies import POLICIES
from attnscope.errors import SettingError, UnsupportedError, unknown
from attnscope.heads import HeadTable
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer

PAIRS = "pairs"
"""The column of a table of budgets."""


@dataclass(frozen=True, eq=False)
class KeptPairs:
    """The key-value pairs that are kept after a context has been read.

    Attributes:
        keep: By layer name, True for the pairs that are kept, (batch, key-value heads, context).
        num_heads: By layer name, the number of query heads.
        policy: The name of the policy.
    """

    keep: Mapping[str, Tensor]
    num_heads: Mapping[str, int]
    policy: str

    @property
    def context(self) -> int:
        """The number of tokens of the context."""
        return next(iter(self.keep.values())).shape[2]

    @property
    def num_pairs(self) -> int:
        """The number of pairs that are kept."""
        return sum(int(kept.sum()) for kept in self.keep.values())

    @property
    def fraction(self) -> float:
        """The share of all pairs that is kept."""
        return self.num_pairs / sum(kept.numel() for kept in self.keep.values())

    def __repr__(self) -> str:
        return f"KeptPairs({self.policy}, {self.num_pairs:,} pairs, {self.fraction:.1%} of {self.context:,} tokens)"


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores of all key-value pairs by a policy.

    Attributes:
        scores: By layer name, (batch, key-value heads, context).
        num_heads: By layer name, the number of query heads.
        policy: The name of the policy.
    """

    scores: Mapping[str, Tensor]
    num_heads: Mapping[str, int]
    policy: str

    def keep(self, budget: float | HeadTable, *, per: Literal["head", "layer"] = "head") -> KeptPairs:
        """Keep the pairs with the highest scores.

        Args:
            budget: The share of pairs to keep, above 0 and at most 1; or the table of `recommend_budgets`, which has a
                number of pairs for each key-value head.
            per: "head" keeps the same number in each key-value head; "layer" keeps the highest scores of all heads of
                a layer (as Ada-KV, arXiv 2407.11550), the same number in each layer.

        Raises:
            SettingError: An argument is invalid.
        """
        if per not in ("head", "layer"):
            raise SettingError(f"keep: expected per='head' or 'layer', got {per!r}")
        if isinstance(budget, HeadTable):
            if per == "layer":
                raise SettingError("keep: a table has a budget for each head; leave out per='layer'")
            counts = self._counts_of(budget)
            keep = {name: _keep_per_head(some, counts[name]) for name, some in self.scores.items()}
            return KeptPairs(keep, self.num_heads, self.policy)
        if not 0 < budget <= 1:
            raise SettingError(f"keep: expected a share above 0 and at most 1, got {budget}")
        keep = {}
        for name, some in self.scores.items():
            _, heads, keys = some.shape
            count = max(1, int(budget * keys + 1e-9))  # 0.29 * 100 is less than 29 in floating point
            if per == "head":
                keep[name] = _keep_per_head(some, [count] * heads)
            else:
                keep[name] = _keep_per_head(some.flatten(1)[:, None], [count * heads]).view_as(some)
        return KeptPairs(keep, self.num_heads, self.policy)

    def _counts_of(self, budgets: HeadTable) -> dict[str, list[int]]:
        counts = {name: [-1] * some.shape[1] for name, some in self.scores.items()}
        try:
            for layer, head, pairs in zip(budgets.layers, budgets.heads, budgets[PAIRS].tolist(), strict=True):
                counts[layer][head] = int(pairs)
        except (KeyError, IndexError) as error:
            raise SettingError("keep: the table has other layers or heads than these scores") from error
        for name, some in counts.items():
            if not all(0 <= count <= self.scores[name].shape[2] for count in some):
                raise SettingError(f"keep: the table has no valid number of pairs for a head of {name}")
        return counts


def _keep_per_head(scores: Tensor, counts: list[int]) -> Tensor:
    """True for the highest scores (batch, heads, keys), so many of each head."""
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return rank < torch.tensor(counts, device=scores.device)[:, None]


def score_pairs(trace: Trace, by: str = "received", *, seed: int = 0, progress: Progress | bool = True) -> PairScores:
    """Score all key-value pairs of a context by a policy.

    Args:
        trace: The context, recorded with `attnscope.read`.
        by: The name of a policy; see `POLICIES`.
        seed: Seeds the policy "random".
        progress: False for no progress bar, or a function called with the number of scored and of all layers.

    Returns:
        A score for each key-value pair of each layer; `keep` selects the pairs with the highest.

    Raises:
        SettingError: There is no such policy, or the trace has no queries and keys.
        UnsupportedError: A layer has not kept all keys.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> from attnscope.recording import read
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> trace = read(Decoder(config).eval(), list(range(20)), progress=False)
    >>> score_pairs(trace, "received", progress=False).keep(0.25)
    KeptPairs(received, 40 pairs, 25.0% of 20 tokens)
    """
    if by not in POLICIES:
        raise SettingError(f"cache: {unknown('policy', by, POLICIES)}")
    scores, num_heads = {}, {}
    with report_progress(progress, f"scoring pairs by {by}") as report:
        for at, (name, layer) in enumerate(self_attention(trace).items()):
            call = layer.merge_calls()
            scores[name] = POLICIES[by].score(call, layer.matrix(), seed + at)
            num_heads[name] = call.query.shape[1]
            report(at + 1, len(trace))
    return PairScores(scores, num_heads, by)


def self_attention(trace: Trace) -> dict[str, Layer]:
    """The self-attention layers of a trace, all with the same number of keys."""
    found: dict[str, Layer] = {}
    for name, layer in trace.layers.items():
        if not isinstance(layer, Layer):
            raise SettingError("cache: this trace has no queries and keys; record it with keep='matrix'")
        if not layer.cross:
            found[name] = layer
    if not found:
        raise SettingError("cache: this trace has no self-attention layer")
    if any(layer.columns.start for layer in found.values()) or len({layer.shape[3] for layer in found.values()}) > 1:
        raise UnsupportedError(
            "cache: the trace does not have the keys of all tokens in all layers, so that there is no common budget; "
            "record the text from its start"
        )
    return found
