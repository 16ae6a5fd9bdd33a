"""How a browser computes the weights of a head from its queries and keys: the mask and the score modifiers as JSON.

In: a recorded layer. Out: a rule, or None where a browser cannot compute the weights: imported weights, a mask that is
not made of regions, a bias tensor, queries and keys in double precision. Does not know: archives. Memory: O(1).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes
from attnscope.attention.regions import Region
from attnscope.attention.scores import ALiBi, ScoreMod, Sinks, Softcap, Temperature
from attnscope.explorer.static_site.archive import DTYPES
from attnscope.recording.call import Call
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.recorded import Layer


def score_rule(layer: AnyLayer, head: int) -> dict[str, Any] | None:
    """The scale, score modifiers and allowed cells of a head of the first sequence; None if they cannot be written.

    Returns:
        `scale`, `steps` in their order, and `regions`: rows [top, bottom), columns [left, right) with lowest <= column
        - row <= highest, as six integers each. Sinks are part of the log-sum-exp and do not appear.
    """
    if not isinstance(layer, Layer):
        return None
    call = layer.merge_calls()
    regions, steps = _find_regions(call, Sizes(*layer.shape)), _to_steps(call.score_mod, layer.shape, head)
    if regions is None or steps is None or call.query.dtype not in DTYPES or call.key.dtype not in DTYPES:
        return None
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else float(call.scale)
    return {"scale": scale, "steps": steps, "regions": [list(region) for region in regions]}


def _find_regions(call: Call, sizes: Sizes) -> list[Region] | None:
    mask = call.mask.narrow(slice(0, 1), slice(0, sizes.heads))
    found = mask.to_regions(Sizes(1, *sizes[1:]))
    if found is None:
        return None
    columns = [(0, sizes.keys)] if found.key_mask is None else _runs(found.key_mask[0])
    cut = (
        region._replace(left=max(region.left, left), right=min(region.right, right)).tighten()
        for region in found.regions[0]
        for left, right in columns
    )
    return [region for region in cut if region is not None]


def _runs(allowed: Tensor) -> list[tuple[int, int]]:
    """The runs of True.

    >>> _runs(torch.tensor([False, True, True, False, True]))
    [(1, 3), (4, 5)]
    """
    edges = torch.diff(allowed.cpu().int(), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero().flatten().tolist()
    return list(pairwise(edges))[::2]


def _to_steps(score: ScoreMod | None, shape: tuple[int, int, int, int], head: int) -> list[dict[str, Any]] | None:
    steps: list[dict[str, Any]] = []
    for part in () if score is None else score.parts:
        if isinstance(part, Softcap):
            steps.append({"kind": "softcap", "cap": part.cap})
        elif isinstance(part, Temperature):
            steps.append({"kind": "temperature", "value": part.value})
        elif isinstance(part, ALiBi):
            offset = shape[3] - shape[2] if part.offset is None else part.offset
            steps.append({"kind": "alibi", "slope": float(part.slopes[head]), "offset": offset})
        elif not isinstance(part, Sinks):
            return None
    return steps
