"""`Evictions`: the keys that a KV cache would keep after a context, and the weight of later queries on the others.

In: a trace of a whole text, of which the first tokens are the context. Out: what `attnscope.cache` computes for it.
Any thread may call every method. Does not know: HTTP. Memory: one number for each key of the last layers and policies.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from torch import Tensor

from attnscope.cache import KeptPairs, PairScores, score_pairs
from attnscope.cache.budgets import LaterWeights, later_weights, lost_weight
from attnscope.errors import UnsupportedError
from attnscope.explorer.analysis.inspection import check_weights
from attnscope.explorer.analysis.slicing import slice_layer
from attnscope.explorer.cancellation import CancelCheck
from attnscope.recording import Trace

MAX_RESULTS = 16  # scores and weights of layers


class EvictionSettings(NamedTuple):
    """A policy, the share of keys that it keeps in each key-value head, and the number of tokens of the context."""

    by: str
    share: float
    context: int


class Evictions:
    """The evictions of a trace.

    Args:
        trace: The trace.
        is_causal: Whether a layer is causal.
    """

    def __init__(self, trace: Trace, is_causal: Callable[[int], bool]) -> None:
        self._trace, self._is_causal = trace, is_causal
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def find_kept(self, place: int, head: int, settings: EvictionSettings, cancelled: CancelCheck) -> Tensor:
        """Return True for the keys of the context that a head keeps, (context,)."""
        (keep,) = self._keep(place, settings, cancelled).keep.values()
        return keep[0, head * keep.shape[1] // self._trace.layer(place).shape[1]]

    def measure_lost(self, place: int, head: int, settings: EvictionSettings, cancelled: CancelCheck) -> float:
        """Return the weight of the queries after the context on evicted keys, as their mean."""

        def measure() -> LaterWeights:
            return later_weights(slice_layer(self._trace, place, cancelled=cancelled), settings.context)

        kept = self._keep(place, settings, cancelled)
        later = self._compute_once((place, settings.context), measure)
        lost = lost_weight(kept, later)["lost"][head]
        check_weights(lost)
        return float(lost)

    def _keep(self, place: int, settings: EvictionSettings, cancelled: CancelCheck) -> KeptPairs:
        by, share, context = settings
        layer = self._trace.layer(place)
        if not self._is_causal(place) or layer.shape[2] != layer.shape[3]:
            raise UnsupportedError(
                f"{layer.name} is not causal self-attention over a whole text, so there is no KV cache to evict from"
            )

        def score() -> PairScores:
            part = slice_layer(self._trace, place, queries=context, cancelled=cancelled)
            return score_pairs(part, by, seed=place, progress=False)

        return self._compute_once((place, by, context), score).keep(share)

    def _compute_once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._results:
                self._results[key] = compute()
            self._results.move_to_end(key)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)
            return self._results[key]
