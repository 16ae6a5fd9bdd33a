"""Merge the measurements of all ranks: one MAX and one SUM all-reduce for all layers and heads together.

In: the measurements of this rank by layer. Out: those of all ranks, equal on every rank. Ranks may have the same layers
(data parallel), other layers (pipeline parallel), or other heads of a layer (tensor parallel).
Does not know: what is measured beyond maxima, places and sums. Memory: O(heads).

The MAX is taken over integers that order as the logits do, with the rank in their low bits. So it also tells which rank
has the largest logit, and the SUM carries the place from that rank alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from attnscope.errors import UnsupportedError
from attnscope.telemetry.measurement import NUM_ENTROPY_BINS, Maxima, Measurement, Place, Sums

LOW_BITS = 32
LOWEST_RANK = 2**LOW_BITS - 1
SIGN = 0x7FFFFFFF


class HeadShard(NamedTuple):
    """Which part of the heads of a layer a rank has."""

    rank: int = 0
    ranks: int = 1


def find_head_shard(module: nn.Module) -> HeadShard:
    """The part of the heads that this rank has of a layer in its forward pass, from weights sharded by row (DTensor).

    FSDP2 also stores DTensors, but gathers them before the forward pass.
    """
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            for dim, placement in enumerate(parameter.placements):
                if isinstance(placement, Shard) and placement.dim == 0 and mesh.size(dim) > 1:
                    return HeadShard(mesh.get_local_rank(dim), mesh.size(dim))
    return HeadShard()


class RankReduction:
    """Merges measurements over the ranks of a group, which agree once on the layers and their numbers of heads.

    Args:
        group: The ranks; all of them if None.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._heads: dict[str, int] | None = None

    def reduce(
        self, measurements: Mapping[str, Measurement], shards: Mapping[str, HeadShard]
    ) -> dict[str, Measurement]:
        """Return the measurements of all ranks together, on the device that the group communicates on.

        Args:
            measurements: Those of this rank by layer.
            shards: Which heads of each layer this rank has.

        Raises:
            UnsupportedError: On every rank, if one of them measured a layer or heads that it did not have in the first
                step, or ranks disagree on the number of heads of a layer.
        """
        if not dist.is_initialized() or dist.get_world_size(self._group) == 1:
            return dict(measurements)
        own = {name: len(part.maxima.logit) * shards[name].ranks for name, part in measurements.items()}
        if self._heads is None:
            self._heads = self._agree(own)
        rank, device = dist.get_rank(self._group), self._device()
        is_foreign = any(self._heads.get(name) != count for name, count in own.items())
        columns = sum(self._heads.values())
        maxima = torch.full((len(Maxima._fields), columns), -math.inf, device=device)
        place = torch.full((len(Place._fields), columns), -1, device=device)
        sums = torch.zeros(len(Sums._fields) - 1 + NUM_ENTROPY_BINS, columns, dtype=torch.float64, device=device)
        start = 0
        for name, count in self._heads.items():
            if name in measurements and not is_foreign:
                part, shard = measurements[name], shards[name]
                length = count // shard.ranks
                where = slice(start + shard.rank * length, start + (shard.rank + 1) * length)
                maxima[:, where] = torch.stack(list(part.maxima)).to(maxima)
                place[:, where] = torch.stack(list(part.place)).to(place)
                sums[:, where] = torch.cat([torch.stack(list(part.sums[:-1])), part.sums.entropy_counts.mT]).to(sums)
            start += count
        encoded = encode(maxima, rank)
        has_largest = encoded[0].clone()
        dist.all_reduce(encoded, dist.ReduceOp.MAX, self._group)
        has_largest = encoded[0] == has_largest
        foreign = torch.full((1, columns), float(is_foreign), dtype=torch.float64, device=device)
        together = torch.cat([place * has_largest, sums, foreign])
        dist.all_reduce(together, dist.ReduceOp.SUM, self._group)
        if together[-1].any():
            raise UnsupportedError(
                "watch: a rank measured a layer or a number of heads that it did not have in the first measured step, "
                "so the ranks cannot be merged; pass group= with the ranks that run the same model"
            )
        widths = list(self._heads.values())
        parts = zip(self._heads, encoded.split(widths, 1), together.split(widths, 1), strict=True)
        return {name: _unpack(highest, total) for name, highest, total in parts}

    def _device(self) -> torch.device:
        return torch.device("cuda") if "nccl" in dist.get_backend(self._group) else torch.device("cpu")

    def _agree(self, own: dict[str, int]) -> dict[str, int]:
        """The layers of all ranks with their numbers of heads, in the order of the first rank that has them."""
        gathered: list[dict[str, int]] = [{}] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, own, self._group)
        agreed: dict[str, int] = {}
        for rank, heads in enumerate(gathered):
            for name, count in heads.items():
                if agreed.setdefault(name, count) != count:
                    raise UnsupportedError(
                        f"watch: layer {name} has {count} heads on rank {rank} and {agreed[name]} on another; if heads "
                        "are sharded over ranks, shard the weights as DTensors, as parallelize_module does"
                    )
        return agreed


def _unpack(maxima: Tensor, together: Tensor) -> Measurement:
    sizes = [len(Place._fields), len(Sums._fields) - 1, NUM_ENTROPY_BINS, 1]
    place, sums, counts, _ = together.split(sizes)
    rank = LOWEST_RANK - (maxima[0] & LOWEST_RANK)
    return Measurement(
        Maxima._make(decode(maxima)),
        Place._make(place.long())._replace(rank=rank),
        Sums._make([*sums, counts.mT]),
    )


def encode(values: Tensor, rank: int) -> Tensor:
    """Integers that order as fp32 values do, NaN above all, and of equal values the one of the lowest rank first.

    >>> encode(torch.tensor([-1.0, 0.5]), 0) < encode(torch.tensor([0.0, float("nan")]), 3)
    tensor([True, True])
    """
    bits = torch.where(values.isnan(), torch.nan, values).float().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ SIGN, bits)
    return (ordered << LOW_BITS) + (LOWEST_RANK - rank)


def decode(encoded: Tensor) -> Tensor:
    """The values of `encode`, without the rank."""
    ordered = (encoded >> LOW_BITS).int()
    return torch.where(ordered < 0, ordered ^ SIGN, ordered).view(torch.float32)
