"""The first queries and some heads of a layer, for the first sequence, with unchanged weights.

In: a layer. In a causal layer any number of first queries can be taken, because later keys are masked; in others all of
them. Out: a layer that shares its tensors, and can be cancelled. Does not know: whether it is causal. Memory: O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from attnscope.attention.algebra import Mask, RegionMask, Sizes
from attnscope.attention.regions import crop_columns, crop_rows
from attnscope.attention.scores import Bias, ScoreMod, Sinks, chain_scores
from attnscope.errors import UnsupportedError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from attnscope.recording.call import Call, with_heads
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts


def slice_layer(
    trace: Trace,
    place: int,
    *,
    queries: int | None = None,
    heads: Sequence[int] | None = None,
    cancelled: CancelCheck = never_cancelled,
) -> Trace:
    """Make a trace of one layer with its first queries, their keys, and some heads.

    Args:
        trace: The trace.
        place: The index of the layer.
        queries: The number of queries; by default all. Fewer are exact only in a causal layer.
        heads: The heads; by default all.
        cancelled: The cancellation check of its matrix.

    Returns:
        A trace with this layer, for the first sequence.

    Raises:
        UnsupportedError: The layer has only statistics.
    """
    layer, sliced = trace.layer(place), Trace(trace.model)
    queries = layer.shape[2] if queries is None else queries
    keys = queries + layer.shape[3] - layer.shape[2]
    chosen = list(range(layer.shape[1])) if heads is None else list(heads)
    if isinstance(layer, DenseLayer):
        sliced.layers = {layer.name: DenseLayer(layer.name, layer.weights[:1, chosen, :queries, :keys])}
    elif isinstance(layer, Layer):
        call = _slice_call(layer.merge_calls(), Sizes(*layer.shape), queries, keys)
        call = call if heads is None else with_heads(call, chosen)
        sliced.layers = {layer.name: _CancellableLayer(layer.name, call, layer.cross, cancelled)}
    else:
        raise UnsupportedError(f"{layer.name}: expected a layer with weights, got statistics only")
    ids = trace.ids(place)[1]
    sliced.texts = [] if ids is None or layer.cross else [Texts("", ids[:1, :keys])]
    return sliced


class _CancellableLayer(Layer):
    """A layer whose matrix can be cancelled."""

    def __init__(self, name: str, call: Call, cross: bool, cancelled: CancelCheck) -> None:
        super().__init__(name, call, cross=cross)
        self._cancelled = cancelled

    def matrix(self) -> AttentionMatrix:
        return super().matrix().with_options(should_stop=self._cancelled)


def _slice_call(call: Call, whole: Sizes, queries: int, keys: int) -> Call:
    first = slice(0, 1)
    return replace(
        call,
        query=call.query[first, :, :queries],
        key=call.key[first, :, :keys],
        value=None,
        lse=None if call.lse is None else call.lse[first, :, :queries],
        mask=_SlicedMask(call.mask.narrow(first, slice(0, whole.heads)), whole.queries, whole.keys),
        score_mod=None if call.score_mod is None else _slice_score(call.score_mod, whole.heads, queries, keys),
        whole=None,
    )


def _slice_score(score: ScoreMod, heads: int, queries: int, keys: int) -> ScoreMod | None:
    """Slice score modifiers; a bias tensor is cut, and those that depend on distances are unchanged."""
    parts = (part if isinstance(part, Sinks) else part.narrow(slice(0, 1), slice(0, heads)) for part in score.parts)
    return chain_scores(Bias(part.values[..., :queries, :keys]) if isinstance(part, Bias) else part for part in parts)


@dataclass(frozen=True)
class _SlicedMask(Mask):
    """The first rows and columns of a larger mask."""

    inner: Mask
    queries: int
    keys: int

    @property
    def is_static(self) -> bool:
        return self.inner.is_static

    def _whole(self, sizes: Sizes) -> Sizes:
        return Sizes(sizes.batch, sizes.heads, self.queries, self.keys)

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.inner.allows(query, key, self._whole(sizes))

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        found = self.inner.to_regions(self._whole(sizes))
        if found is None:
            return None
        cut = [crop_columns(crop_rows(some, 0, sizes.queries), 0, sizes.keys) for some in found.regions]
        return RegionMask(tuple(cut), None if found.key_mask is None else found.key_mask[:, : sizes.keys])

    def check(self, sizes: Sizes) -> None:
        self.inner.check(self._whole(sizes))

    def narrow(self, batch: slice, heads: slice | list[int]) -> _SlicedMask:
        return replace(self, inner=self.inner.narrow(batch, heads))
