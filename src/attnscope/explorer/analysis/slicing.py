"""The first queries of the first text of a layer, with the very weights that they have there.

In: a layer. In one in which no query sees a key behind its own position, what comes later changes nothing, and any
number of queries can be taken; in others all of them. Out: a layer that shares its tensors, and whose work can be told
to stop. Does not know: which of both it is. Memory: O(1).
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
    """A trace of the first queries of a layer and the keys that they may see; all, or some of its heads."""
    layer, alone = trace.layer(place), Trace(trace.model)
    queries = layer.shape[2] if queries is None else queries
    keys = queries + layer.shape[3] - layer.shape[2]
    chosen = list(range(layer.shape[1])) if heads is None else list(heads)
    if isinstance(layer, DenseLayer):
        alone.layers = {layer.name: DenseLayer(layer.name, layer.weights[:1, chosen, :queries, :keys])}
    elif isinstance(layer, Layer):
        call = _corner_of(layer.joined(), Sizes(*layer.shape), queries, keys)
        call = call if heads is None else with_heads(call, chosen)
        alone.layers = {layer.name: _CancellableLayer(layer.name, call, layer.cross, cancelled)}
    else:
        raise UnsupportedError(f"{layer.name}: this layer has statistics alone, which cannot be looked into")
    ids = trace.ids(place)[1]
    alone.texts = [] if ids is None or layer.cross else [Texts("", ids[:1, :keys])]
    return alone


class _CancellableLayer(Layer):
    """A layer with a matrix that can be told to stop."""

    def __init__(self, name: str, call: Call, cross: bool, cancelled: CancelCheck) -> None:
        super().__init__(name, call, cross=cross)
        self._cancelled = cancelled

    def matrix(self) -> AttentionMatrix:
        return super().matrix().with_options(should_stop=self._cancelled)


def _corner_of(call: Call, whole: Sizes, queries: int, keys: int) -> Call:
    first = slice(0, 1)
    return replace(
        call,
        query=call.query[first, :, :queries],
        key=call.key[first, :, :keys],
        value=None,
        lse=None if call.lse is None else call.lse[first, :, :queries],
        mask=_Corner(call.mask.narrow(first, slice(0, whole.heads)), whole.queries, whole.keys),
        score_mod=None if call.score_mod is None else _score_of(call.score_mod, whole.heads, queries, keys),
        whole=None,
    )


def _score_of(score: ScoreMod, heads: int, queries: int, keys: int) -> ScoreMod | None:
    """Scores of the first text; a table of all cells is cut, and what counts distances stays as it is."""
    parts = (part if isinstance(part, Sinks) else part.narrow(slice(0, 1), slice(0, heads)) for part in score.parts)
    return chain_scores(Bias(part.values[..., :queries, :keys]) if isinstance(part, Bias) else part for part in parts)


@dataclass(frozen=True)
class _Corner(Mask):
    """The first rows and columns of the mask of a larger matrix."""

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

    def narrow(self, batch: slice, heads: slice | list[int]) -> _Corner:
        return replace(self, inner=self.inner.narrow(batch, heads))
