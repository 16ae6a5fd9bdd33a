"""Attention over one long text whose positions are spread over the ranks of a process group.

In: each rank's share of queries, keys and values, and a mask that speaks of the whole text. Out: each rank's share of
the output, exact. Keys and values travel around a ring of ranks, and each rank merges what it sees of them by lse; in
the backward they travel again, with their gradients. Inside `across_ranks`, every `attend` does so.
Does not know: models, batches, losses. The sum of a loss or of a parameter's gradient over the ranks is the caller's.
Memory of a rank: O(length / ranks). Saved for the backward: its own query, key, value, output and lse.

The tests run this on CPUs with gloo. Other devices take the same ring and the same merge; the parts between two merges
come from the streaming backend there instead of the fused one, and that backend is tested part by part on the CPU. NCCL
itself has not been exercised.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.attention import Full, Mask, attend
from attnscope.attention.first_order import Gradients, first_order
from attnscope.attention.fused import empty_lse, merge_partials
from attnscope.attention.plan import Plan
from attnscope.attention.spec import AttentionSpec, Signature, make_spec, signature_of, to_4d, to_autocast_dtype
from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.train.partial_attention import Ranges, backward, forward, plan_partial, total_length, with_length


@dataclass(frozen=True)
class Shares:
    """Which positions of a text each rank holds: of 2 * ranks chunks, one from the front and its mirror from the back.

    Under a causal mask late queries see more keys than early ones, and so all ranks have the same work.

    >>> Shares(length=10, ranks=2).pieces(0), Shares(length=10, ranks=2).pieces(1)
    (((0, 2), (7, 10)), ((2, 7),))
    """

    length: int
    ranks: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.ranks < 1:
            raise SettingError(f"{self}: it takes one position and one rank at least")

    def pieces(self, rank: int) -> Ranges:
        """The stretches [start, stop) that this rank holds, one behind the other; none in a text that is too short."""
        if not 0 <= rank < self.ranks:
            raise SettingError(f"{self}: asked for rank {rank}; there are ranks 0 to {self.ranks - 1}")
        (first, first_stop), (second, stop) = self._chunk(rank), self._chunk(2 * self.ranks - 1 - rank)
        both = ((first, stop),) if first_stop == second else ((first, first_stop), (second, stop))
        return tuple(piece for piece in both if piece[0] < piece[1])

    def positions(self, rank: int) -> Tensor:
        """The positions (share,) that this rank holds, in its order.

        >>> Shares(length=10, ranks=2).positions(0)
        tensor([0, 1, 7, 8, 9])
        """
        return self.take(torch.arange(self.length), rank, 0)

    def take(self, tensor: Tensor, rank: int, dim: int) -> Tensor:
        """A rank's share of a tensor of the whole text, whose positions lie along `dim`."""
        if tensor.shape[dim] != self.length:
            raise ShapeError(f"{self}: dimension {dim} of {tuple(tensor.shape)} does not hold the whole text")
        pieces = [tensor.narrow(dim, start, stop - start) for start, stop in self.pieces(rank)]
        return torch.cat(pieces, dim) if pieces else tensor.narrow(dim, 0, 0)

    def _chunk(self, chunk: int) -> tuple[int, int]:
        chunks = 2 * self.ranks
        return chunk * self.length // chunks, (chunk + 1) * self.length // chunks


def across_ranks(shares: Shares, group: dist.ProcessGroup | None = None) -> AbstractContextManager[object]:
    """Inside this block, `attend` takes this rank's share of a text and attends over all of it; see `ring_attend`.

    A decoder needs no more than its share of the tokens and `position_ids=shares.positions(rank)`. The backward may
    follow inside the block or after it. Torch's own attention functions are refused inside.

    Activation checkpoints attend again in the backward, where no block reaches. Let them enter one of their own:
    `checkpoint(..., use_reentrant=False, context_fn=lambda: (nullcontext(), across_ranks(shares, group)))`. Without it
    they notice and raise; reentrant ones do not notice, and must not be used.
    """
    return _AcrossRanks(shares, group)


@overload
def ring_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shares: Shares,
    group: dist.ProcessGroup | None = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def ring_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shares: Shares,
    group: dist.ProcessGroup | None = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def ring_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shares: Shares,
    group: dist.ProcessGroup | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attend` for this rank's share of the queries (..., heads, share, dim) over the keys of all ranks.

    The mask speaks of the whole text and must be a short list of rectangles: Causal, Window, Documents, Padding,
    Prefix and what `&`, `|` and `~` make of them. Output and lse are differentiable, once. Every rank of the group must
    make the same calls with the same batch and heads, and must go through the backward if one of them does.
    """
    ring = _Ring(shares, group)
    query, key, value = to_autocast_dtype(query, key, value)
    signature = signature_of(query, key, value)
    ring.check(signature)
    job = _Job(ring, ring.plans(signature, Full() if mask is None else mask, scale))
    leading, (query, key, value) = query.shape[:-2], (to_4d(tensor) for tensor in (query, key, value))
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        output, lse = _RingAttention.apply(job, query, key, value)
    else:
        output, lse = _forward(job, query, key, value)
    output, lse = output.reshape(*leading, *output.shape[2:]), lse.reshape(*leading, lse.shape[-1])
    return (output, lse) if return_lse else output


class _AcrossRanks(TorchFunctionMode):
    def __init__(self, shares: Shares, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.shares, self.group = shares, group
        _Ring(shares, group)  # refuses at the door what cannot work inside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is attend:
            return self._attend(*args, **(kwargs or {}))
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            raise UnsupportedError(
                f"across_ranks: {func.__name__} was called, which would see this rank's share of the keys only; "
                "call attnscope's attend, or call it outside of the block"
            )
        return func(*args, **(kwargs or {}))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **of: Any) -> Tensor | tuple[Tensor, Tensor]:
        asked = {"score_mod": of.pop("score_mod"), "dropout": of.pop("dropout"), "backend": of.pop("backend")}
        for name, plain in (("score_mod", None), ("dropout", 0.0), ("backend", "auto")):
            if asked[name] != plain:
                raise UnsupportedError(
                    f"across_ranks: attend was called with {name}={asked[name]!r}, which is not known over several "
                    f"ranks; call it with {name}={plain!r}, or attend to the whole text on one rank"
                )
        return ring_attend(query, key, value, shares=self.shares, group=self.group, **of)


class _Ring:
    """A rank's place among the others: whose keys it holds when, and what it hands to its neighbour."""

    def __init__(self, shares: Shares, group: dist.ProcessGroup | None) -> None:
        if not dist.is_initialized():
            raise SettingError("ring_attend: there is no process group; call torch.distributed.init_process_group")
        self.shares, self.group, self.rank = shares, group, dist.get_rank(group)
        if self.rank < 0 or dist.get_world_size(group) != shares.ranks:
            size = f"has {dist.get_world_size(group)} ranks" if self.rank >= 0 else "does not have this process"
            raise SettingError(f"ring_attend: {shares} was given with a group that {size}")

    def check(self, signature: Signature) -> None:
        """Raise unless the tensors are this rank's share."""
        share = total_length(self.shares.pieces(self.rank))
        lengths = {shape[-2] for shape in signature[:3] if len(shape) > 1}
        if lengths != {share}:
            found = f"query {tuple(signature.query)}, key {tuple(signature.key)}, value {tuple(signature.value)}"
            raise ShapeError(
                f"ring_attend: rank {self.rank} holds {share} positions of {self.shares}; got {found}. Cut each "
                "tensor with shares.take; a cache of keys cannot be shared out"
            )

    def plans(self, signature: Signature, mask: Mask, scale: float | None) -> tuple[Plan | None, ...]:
        """What this rank has to do with the keys of each rank; None where the mask leaves nothing."""
        spec = self._whole(signature, mask, scale)
        region_mask = mask.to_regions(spec.sizes)
        if region_mask is None:
            raise UnsupportedError(
                f"ring_attend: the mask {mask} is not a short list of rectangles; say it with Causal, Window, "
                "Documents, Padding and Prefix, or attend to the whole text on one rank"
            )
        pieces = [self.shares.pieces(rank) for rank in range(self.shares.ranks)]
        return tuple(plan_partial(spec, region_mask, pieces[self.rank], columns) for columns in pieces)

    def _whole(self, signature: Signature, mask: Mask, scale: float | None) -> AttentionSpec:
        query, key, value = (with_length(shape, self.shares.length) for shape in signature[:3])
        whole = signature._replace(query=query, key=key, value=value)
        return make_spec(whole, mask=mask, scale=scale, score_mod=None, dropout=0.0)

    def owner(self, step: int) -> int:
        """Whose keys are here after so many steps."""
        return (self.rank - step) % self.shares.ranks

    def pass_on(self, packet: _Packet, step: int) -> _Passage:
        """Hand what is here at this step to the next rank, and take what the one before has."""
        if self.shares.ranks == 1:
            return _Passage(packet, packet, [])
        arriving = packet.blank(total_length(self.shares.pieces(self.owner(step + 1))))
        after, before = self.owner(-1), self.owner(1)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, packet.buffer, group=self.group, group_peer=after),
                dist.P2POp(dist.irecv, arriving.buffer, group=self.group, group_peer=before),
            ]
        )
        return _Passage(packet, arriving, works)


class _Packet(NamedTuple):
    """Two tensors of a rank (batch, key heads, share, ...) in one stretch of memory, as processes exchange them.

    A transposed view of a model's activations would be sent in the order of its memory, not of its positions.
    """

    buffer: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(key: Tensor, value: Tensor) -> _Packet:
        packet = _Packet._new(key.new_empty(key.numel() + value.numel()), key.shape, value.shape)
        packet.key.copy_(key)
        packet.value.copy_(value)
        return packet

    def blank(self, length: int) -> _Packet:
        """A packet of the same kind for a share of another length, to be filled."""
        key, value = with_length(self.key.shape, length), with_length(self.value.shape, length)
        return _Packet._new(self.buffer.new_empty(key.numel() + value.numel()), key, value)

    def zeros(self, dtype: torch.dtype) -> _Packet:
        """A packet of the same shape that holds zeros."""
        return _Packet._new(torch.zeros_like(self.buffer, dtype=dtype), self.key.shape, self.value.shape)

    @staticmethod
    def _new(buffer: Tensor, key: torch.Size, value: torch.Size) -> _Packet:
        keys, values = buffer.split((key.numel(), value.numel()))
        return _Packet(buffer, keys.view(key), values.view(value))


class _Passage(NamedTuple):
    """A packet that leaves, kept until it is gone, and one that arrives."""

    leaving: _Packet
    arriving: _Packet
    works: list[dist.Work]

    def wait(self) -> _Packet:
        for work in self.works:
            work.wait()
        return self.arriving


class _Job(NamedTuple):
    """One attention over the ranks, without its numbers."""

    ring: _Ring
    plans: tuple[Plan | None, ...]


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, job: _Job, query: Tensor, key: Tensor, value: Tensor):
        output, lse = _forward(job, query, key, value)
        # The lse is kept in another shape than attend keeps it: a checkpoint that computes this again outside of
        # across_ranks would attend to this rank's keys alone, and only by the shapes can it notice.
        ctx.save_for_backward(query, key, value, output, lse[..., None])
        ctx.job = job
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        def compute(above, lse_above, query, key, value, output, lse) -> Gradients:
            return _backward(ctx.job, (above, lse_above), (query, key, value), output, lse.squeeze(-1))

        return None, *first_order("ring", compute, *gradients, *ctx.saved_tensors)


def _forward(job: _Job, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse of this rank's rows; the keys of the next step travel while those at hand are read."""
    ring, last = job.ring, job.ring.shares.ranks - 1
    precise = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=precise)
    lse = empty_lse(query)
    held = _Packet.of(key, value)
    with torch.autocast(query.device.type, enabled=False):
        for step in range(last + 1):
            passage = ring.pass_on(held, step) if step < last else None
            plan = job.plans[ring.owner(step)]
            if plan is not None:
                merge_partials(output, lse, *forward(plan, query, held.key, held.value), first=step == 0)
            held = held if passage is None else passage.wait()
    return output.to(query.dtype), lse.to(precise)


def _backward(
    job: _Job,
    gradients: tuple[Tensor | None, Tensor | None],
    tensors: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's tensors. Those of keys and values follow them, one step behind, and so come home."""
    ring, ranks, precise = job.ring, job.ring.shares.ranks, lse.dtype
    query, key, value = tensors
    # Converted once: what has this dtype passes every step as it is.
    rows, output = query.to(precise), output.to(precise)
    above = None if gradients[0] is None else gradients[0].to(precise)
    query_sum, held, sums = torch.zeros_like(rows), _Packet.of(key, value), None
    with torch.autocast(query.device.type, enabled=False):
        for step in range(ranks):
            passage = ring.pass_on(held, step) if step < ranks - 1 else None
            plan = job.plans[ring.owner(step)]
            if plan is None:
                added = held.zeros(precise)
            else:
                part, *others = backward(plan, (above, gradients[1]), (rows, held.key, held.value), output, lse)
                query_sum += part
                added = _Packet.of(*others)
            if sums is not None:
                added.buffer.add_(sums.wait().buffer)
            sums = ring.pass_on(added, step)
            held = held if passage is None else passage.wait()
    assert sums is not None
    home = sums.wait()
    return query_sum.to(query.dtype), home.key.to(key.dtype), home.value.to(value.dtype)
