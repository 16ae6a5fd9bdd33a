"""Merge the measurements of all ranks: one MAX and one SUM all-reduce for all layers and heads together.

In: the measurements of this rank by layer. Out: those of all ranks, equal on every rank.
Does not know: what is measured beyond maxima, places and sums. Memory: O(heads).

The MAX is taken over integers that order as the logits do, with the rank in their low bits. So it also tells which rank
has the largest logit, and the SUM carries the place from that rank alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.telemetry.measurement import Maxima, Measurement, Place, Sums

LOW_BITS = 32
SIGN = 0x7FFFFFFF


def reduce_ranks(
    measurements: Mapping[str, Measurement], group: dist.ProcessGroup | None = None
) -> dict[str, Measurement]:
    """Return the measurements of all ranks together, on the device that the group communicates on."""
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return dict(measurements)
    rank = dist.get_rank(group)
    _check_layers(measurements, group)
    device = torch.device("cuda") if "nccl" in dist.get_backend(group) else torch.device("cpu")
    parts = [_to(part, device) for part in measurements.values()]
    maxima = torch.cat([torch.stack([encode(one, rank) for one in part.maxima]) for part in parts], 1)
    own = maxima[0].clone()
    dist.all_reduce(maxima, dist.ReduceOp.MAX, group)
    has_largest = (maxima[0] == own).double()
    place = torch.cat([torch.stack(list(part.place)) for part in parts], 1) * has_largest
    sums = torch.cat([torch.stack(list(part.sums[:-1])) for part in parts], 1)
    counts = torch.cat([part.sums.entropy_counts for part in parts]).mT
    together = torch.cat([place, sums, counts])
    dist.all_reduce(together, dist.ReduceOp.SUM, group)
    widths = [len(part.maxima.logit) for part in parts]
    columns = zip(measurements, maxima.split(widths, 1), together.split(widths, 1), strict=True)
    return {name: _unpack(highest, total) for name, highest, total in columns}


def _unpack(maxima: Tensor, together: Tensor) -> Measurement:
    count = len(Place._fields)
    scalars = len(Sums._fields) - 1
    return Measurement(
        Maxima(*decode(maxima)),
        Place(*together[:count].long()),
        Sums(*together[count : count + scalars], together[count + scalars :].mT),
    )


def encode(values: Tensor, rank: int) -> Tensor:
    """Integers that order as fp32 values do, NaN above all, and of equal values the one of the lowest rank first.

    >>> encode(torch.tensor([-1.0, 0.5]), 0) < encode(torch.tensor([0.0, float("nan")]), 3)
    tensor([True, True])
    """
    bits = torch.where(values.isnan(), torch.nan, values).float().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ SIGN, bits)
    return (ordered << LOW_BITS) + (2**LOW_BITS - 1 - rank)


def decode(encoded: Tensor) -> Tensor:
    """The values of `encode`, without the rank."""
    ordered = (encoded >> LOW_BITS).int()
    return torch.where(ordered < 0, ordered ^ SIGN, ordered).view(torch.float32)


def _to(part: Measurement, device: torch.device) -> Measurement:
    maxima, place, sums = part
    return Measurement(
        Maxima(*(one.to(device, torch.float32) for one in maxima)),
        Place(*(one.to(device) for one in place)),
        Sums(*(one.to(device, torch.float64) for one in sums)),
    )


def _check_layers(measurements: Mapping[str, Measurement], group: dist.ProcessGroup | None) -> None:
    """Raise UnsupportedError on every rank if the ranks measured other layers or numbers of heads."""
    own = [(name, len(part.maxima.logit)) for name, part in measurements.items()]
    others: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(others, own, group)
    if any(other != own for other in others):
        raise UnsupportedError(
            "watch: the ranks measured different layers or numbers of heads in this step, so their statistics cannot "
            "be merged; pass group= with the ranks that run the same layers"
        )
