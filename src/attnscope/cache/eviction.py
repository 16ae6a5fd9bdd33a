"""`evicted`: run a model as if some key-value pairs of its context had been removed from the KV cache.

Queries after the context do not attend to the evicted pairs: their attention is computed again under a mask. Nothing of
the model is replaced. In: a model and the pairs to keep. Out: the same model, changed inside the with block and in
this thread. Does not know: policies. Memory: one boolean for each pair, and the attention of the later queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.attention import attend
from attnscope.attention.algebra import Mask, RegionMask, Sizes
from attnscope.attention.transfers import to_device
from attnscope.cache.kept_pairs import KeptPairs
from attnscope.errors import ShapeError, UnsupportedError
from attnscope.heads.interventions import HeadOutput, replace_head_outputs
from attnscope.recording.hooks.observers import current_observers
from attnscope.recording.single_use import single_use


@single_use
def evicted(model: nn.Module, kept: KeptPairs) -> Iterator[None]:
    """Hide the pairs that are not kept from all queries after the context, inside the with block and in this thread.

    The context itself is read as usual. It may be read inside the block, as by `model.generate`, or before it into a KV
    cache. The text must begin with the context that `kept` was made from, which is not verified.

    Args:
        model: The decoder that the pairs were recorded from.
        kept: The pairs to keep, from `PairScores.keep`.

    Raises:
        UnsupportedError: The KV cache does not grow with the text, or the model is recorded inside the block.
        ShapeError: The batch differs from that of the context.

    >>> from attnscope.cache import score_pairs
    >>> from attnscope.recording import read
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> trace = read(model, list(range(20)), progress=False)
    >>> kept = score_pairs(trace, "recent", progress=False).keep(0.5)
    >>> with torch.no_grad(), evicted(model, kept):
    ...     output = model(torch.arange(22)[None])  # tokens 20 and 21 attend to half of the pairs
    """
    eviction = _Eviction(kept)
    heads = {name: list(range(count)) for name, count in kept.num_heads.items()}
    with replace_head_outputs("evicted", model, heads, eviction.recompute):
        yield


@dataclass(frozen=True, eq=False)
class KeptKeys(Mask):
    """Queries after a context attend to the kept keys of the context, and to all keys after it.

    Args:
        keep: True for kept keys, (batch or 1, heads, context).
    """

    keep: Tensor

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        context = self.keep.shape[2]
        kept = to_device(self.keep, key.device)[:, :, key.clamp(max=context - 1)]
        is_context_query = query + (sizes.keys - sizes.queries) < context
        return kept | (key >= context) | is_context_query

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        return None

    def check(self, sizes: Sizes) -> None:
        if self.keep.shape[0] not in (1, sizes.batch) or self.keep.shape[1] != sizes.heads:
            raise ShapeError(
                f"evicted: expected pairs of (batch, heads) {(sizes.batch, sizes.heads)}, got "
                f"{tuple(self.keep.shape[:2])}"
            )

    def narrow(self, batch: slice, heads: slice | list[int]) -> KeptKeys:
        return KeptKeys(self.keep[batch if len(self.keep) > 1 else slice(None), heads])

    def __repr__(self) -> str:
        return f"KeptKeys({tuple(self.keep.shape)})"


class _Eviction:
    """Computes head outputs again, for queries after the context."""

    def __init__(self, kept: KeptPairs) -> None:
        self._context = kept.context
        self._masks = {
            name: KeptKeys(keep.repeat_interleave(kept.num_heads[name] // keep.shape[1], dim=1))
            for name, keep in kept.keep.items()
        }
        self._read: dict[str, int] = {}  # by layer, the position after the last query

    def recompute(self, output: HeadOutput) -> Tensor:
        """The head outputs without the evicted pairs."""
        queries = output.values.shape[2]
        row = output.num_keys - queries
        self._check(output.layer, row)
        self._read[output.layer] = row + queries
        if row + queries <= self._context:
            return output.values
        if any(observer for observer in current_observers()):
            raise UnsupportedError(
                "evicted: recording inside the block would show weights without eviction; record outside of it"
            )
        call = output.read_call()
        assert call.value is not None, "hooks read calls with their values"
        mask = call.mask & self._masks[output.layer]
        with torch.no_grad():
            return attend(call.query, call.key, call.value, mask=mask, scale=call.scale, score_mod=call.score_mod)

    def _check(self, layer: str, row: int) -> None:
        """Raise unless the queries start at 0, right after the context, or after the last ones."""
        expected = {0, self._context, self._read.get(layer, 0)}
        if row not in expected:
            raise UnsupportedError(
                f"evicted: the queries of {layer} start at position {row:,}, after {self._read.get(layer, 0):,} read "
                f"tokens and a context of {self._context:,}. Use a KV cache that grows with the text (not a static or "
                "sliding-window cache), and give the same context as was recorded"
            )
