"""Handlers of eviction from the KV cache: the keys that a head keeps, and the weight of queries on the others.

In: requests that passed the guard. Out: JSON. Does not know: how anything is computed. Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from attnscope.cache import POLICIES
from attnscope.explorer.analysis.inspection import cells
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers, HeadRef
from attnscope.explorer.library.evictions import EvictionSettings
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import path_int, query_choice, query_int, respond_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from torch import Tensor


class EvictionHandlers(Handlers):
    """Routes of eviction."""

    async def evicted(self, request: Request) -> Response:
        """The keys that a head keeps, as lengths of runs, and the mean weight of later queries on the others."""
        head = self.head_ref(request)
        settings = _read_settings(request, head)

        def report(cancelled: CancelCheck) -> dict[str, Any]:
            evictions = head.entry.evictions
            keep = evictions.find_kept(head.layer, head.head, settings, cancelled)
            lost = evictions.measure_lost(head.layer, head.head, settings, cancelled)
            return {"context": settings.context, "kept": int(keep.sum()), "runs": to_runs(keep), "lost": lost}

        return respond_json(request, await self.run_slow(request, report))

    async def lost(self, request: Request) -> Response:
        """The weight of one query on evicted keys; 0 for queries of the context, which come before the eviction."""
        head = self.head_ref(request)
        settings = _read_settings(request, head)
        query = path_int(request, "place", head.queries)

        def report(cancelled: CancelCheck) -> dict[str, float]:
            keep = head.entry.evictions.find_kept(head.layer, head.head, settings, cancelled)
            if query < settings.context:
                return {"lost": 0.0}
            row = cells(self.library.head(*head).matrix, range(query, query + 1), range(settings.context))[0]
            return {"lost": float(numpy.nansum(row[~keep.cpu().numpy()], dtype=numpy.float64))}

        return respond_json(request, await self.run_slow(request, report))


def to_runs(keep: Tensor) -> list[int]:
    """Return the lengths of runs of kept and evicted keys in turn, beginning with kept ones.

    >>> to_runs(torch.tensor([True, True, False, True])), to_runs(torch.tensor([False, True]))
    ([2, 1, 1], [0, 1, 1])
    """
    _, lengths = torch.unique_consecutive(keep, return_counts=True)
    return ([] if bool(keep[0]) else [0]) + lengths.tolist()


def _read_settings(request: Request, head: HeadRef) -> EvictionSettings:
    """Parse the policy, the percentage to keep and the context, by default the first half of the text."""
    if head.keys < 2:
        raise RequestError(400, "Expected a text of at least 2 tokens: a context and what follows it.")
    context = query_int(request, "context", 1, head.keys - 1) if "context" in request.query_params else head.keys // 2
    return EvictionSettings(query_choice(request, "by", *POLICIES), query_int(request, "keep", 1, 100) / 100, context)
