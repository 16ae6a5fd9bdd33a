"""Attention over one long text whose positions are spread over the ranks of a process group.

In: each rank's share of queries, keys and values, and a mask that speaks of the whole text. Out: each rank's share of
the output, exact. Keys and values travel around a ring of ranks, and each rank merges what it sees of them by lse; in
the backward they travel again, with their gradients. Inside `context_parallel`, every `attend` does so.
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
class ContextShards:
    """Which positions of a text each rank holds: of 2 * ranks chunks, one from the front and its mirror from the back.

    Under a causal mask late queries see more keys than early ones, and so all ranks have the same work.

    >>> ContextShards(sequence_length=10, ranks=2).spans(0), ContextShards(sequence_length=10, ranks=2).spans(1)
    (((0, 2), (7, 10)), ((2, 7),))
    """

    sequence_length: int
    ranks: int

    def __post_init__(self) -> None:
        if self.sequence_length < 1 or self.ranks < 1:
            raise SettingError(f"{self}: it takes one position and one rank at least")

    def spans(self, rank: int) -> Ranges:
        """The stretches [start, stop) that this rank holds, one behind the other; none in a text that is too short."""
        if not 0 <= rank < self.ranks:
            raise SettingError(f"{self}: asked for rank {rank}; there are ranks 0 to {self.ranks - 1}")
        (first, first_stop), (second, stop) = self._chunk(rank), self._chunk(2 * self.ranks - 1 - rank)
        both = ((first, stop),) if first_stop == second else ((first, first_stop), (second, stop))
        return tuple(piece for piece in both if piece[0] < piece[1])

    def positions(self, rank: int) -> Tensor:
        """The positions (share,) that this rank holds, in its order.

        >>> ContextShards(sequence_length=10, ranks=2).positions(0)
        tensor([0, 1, 7, 8, 9])
        """
        return self.take(torch.arange(self.sequence_length), rank, 0)

    def take(self, tensor: Tensor, rank: int, dim: int) -> Tensor:
        """A rank's share of a tensor of the whole text, whose positions lie along `dim`."""
        if tensor.shape[dim] != self.sequence_length:
            raise ShapeError(f"{self}: dimension {dim} of {tuple(tensor.shape)} does not hold the whole text")
        spans = [tensor.narrow(dim, start, stop - start) for start, stop in self.spans(rank)]
        return torch.cat(spans, dim) if spans else tensor.narrow(dim, 0, 0)

    def _chunk(self, chunk: int) -> tuple[int, int]:
        chunks = 2 * self.ranks
        return chunk * self.sequence_length // chunks, (chunk + 1) * self.sequence_length // chunks


def context_parallel(shards: ContextShards, group: dist.ProcessGroup | None = None) -> AbstractContextManager[object]:
    """Inside this block, `attend` takes this rank's share of a text and attends over all of it; see `ring_attention`.

    A decoder needs no more than its share of the tokens and `position_ids=shards.positions(rank)`. The backward may
    follow inside the block or after it. Torch's own attention functions are refused inside.

    Activation checkpoints attend again in the backward, where no block reaches. Let them enter one of their own:
    `checkpoint(..., use_reentrant=False, context_fn=lambda: (nullcontext(), context_parallel(shards, group)))`. Without
    it they notice and raise; reentrant ones do not notice, and must not be used.
    """
    return _ContextParallel(shards, group)


@overload
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shards: ContextShards,
    group: dist.ProcessGroup | None = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shards: ContextShards,
    group: dist.ProcessGroup | None = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shards: ContextShards,
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
    ring = _Ring(shards, group)
    query, key, value = to_autocast_dtype(query, key, value)
    signature = signature_of(query, key, value)
    ring.check(signature)
    job = _RingPlan(ring, ring.plans(signature, Full() if mask is None else mask, scale))
    leading, (query, key, value) = query.shape[:-2], (to_4d(tensor) for tensor in (query, key, value))
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        output, lse = _RingAttention.apply(job, query, key, value)
    else:
        output, lse = _forward(job, query, key, value)
    output, lse = output.reshape(*leading, *output.shape[2:]), lse.reshape(*leading, lse.shape[-1])
    return (output, lse) if return_lse else output


class _ContextParallel(TorchFunctionMode):
    def __init__(self, shards: ContextShards, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.shards, self.group = shards, group
        _Ring(shards, group)  # refuses at the door what cannot work inside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is attend:
            return self._attend(*args, **(kwargs or {}))
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            raise UnsupportedError(
                f"context_parallel: {func.__name__} was called, which would see this rank's share of the keys only; "
                "call attnscope's attend, or call it outside of the block"
            )
        return func(*args, **(kwargs or {}))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **of: Any) -> Tensor | tuple[Tensor, Tensor]:
        asked = {"score_mod": of.pop("score_mod"), "dropout": of.pop("dropout"), "backend": of.pop("backend")}
        for name, plain in (("score_mod", None), ("dropout", 0.0), ("backend", "auto")):
            if asked[name] != plain:
                raise UnsupportedError(
                    f"context_parallel: attend was called with {name}={asked[name]!r}, which is not known over several "
                    f"ranks; call it with {name}={plain!r}, or attend to the whole text on one rank"
                )
        return ring_attention(query, key, value, shards=self.shards, group=self.group, **of)


class _Ring:
    """A rank's place among the others: whose keys it holds when, and what it hands to its neighbour."""

    def __init__(self, shards: ContextShards, group: dist.ProcessGroup | None) -> None:
        if not dist.is_initialized():
            raise SettingError("ring_attention: there is no process group; call torch.distributed.init_process_group")
        self.shards, self.group, self.rank = shards, group, dist.get_rank(group)
        if self.rank < 0 or dist.get_world_size(group) != shards.ranks:
            size = f"has {dist.get_world_size(group)} ranks" if self.rank >= 0 else "does not have this process"
            raise SettingError(f"ring_attention: {shards} was given with a group that {size}")

    def check(self, signature: Signature) -> None:
        """Raise unless the tensors are this rank's share."""
        share = total_length(self.shards.spans(self.rank))
        lengths = {shape[-2] for shape in signature[:3] if len(shape) > 1}
        if lengths != {share}:
            found = f"query {tuple(signature.query)}, key {tuple(signature.key)}, value {tuple(signature.value)}"
            raise ShapeError(
                f"ring_attention: rank {self.rank} holds {share} positions of {self.shards}; got {found}. Cut each "
                "tensor with shares.take; a cache of keys cannot be shared out"
            )

    def plans(self, signature: Signature, mask: Mask, scale: float | None) -> tuple[Plan | None, ...]:
        """What this rank has to do with the keys of each rank; None where the mask leaves nothing."""
        spec = self._whole(signature, mask, scale)
        region_mask = mask.to_regions(spec.sizes)
        if region_mask is None:
            raise UnsupportedError(
                f"ring_attention: the mask {mask} is not a short list of rectangles; say it with Causal, Window, "
                "Documents, Padding and Prefix, or attend to the whole text on one rank"
            )
        spans = [self.shards.spans(rank) for rank in range(self.shards.ranks)]
        return tuple(plan_partial(spec, region_mask, spans[self.rank], columns) for columns in spans)

    def _whole(self, signature: Signature, mask: Mask, scale: float | None) -> AttentionSpec:
        query, key, value = (with_length(shape, self.shards.sequence_length) for shape in signature[:3])
        whole = signature._replace(query=query, key=key, value=value)
        return make_spec(whole, mask=mask, scale=scale, score_mod=None, dropout=0.0)

    def owner_at(self, step: int) -> int:
        """Whose keys are here after so many steps."""
        return (self.rank - step) % self.shards.ranks

    def send_to_next(self, buffer_pair: _KVBuffer, step: int) -> _Transfer:
        """Hand what is here at this step to the next rank, and take what the one before has."""
        if self.shards.ranks == 1:
            return _Transfer(buffer_pair, buffer_pair, [])
        arriving = buffer_pair.blank(total_length(self.shards.spans(self.owner_at(step + 1))))
        after, before = self.owner_at(-1), self.owner_at(1)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, buffer_pair.buffer, group=self.group, group_peer=after),
                dist.P2POp(dist.irecv, arriving.buffer, group=self.group, group_peer=before),
            ]
        )
        return _Transfer(buffer_pair, arriving, works)


class _KVBuffer(NamedTuple):
    """Two tensors of a rank (batch, key heads, share, ...) in one stretch of memory, as processes exchange them.

    A transposed view of a model's activations would be sent in the order of its memory, not of its positions.
    """

    buffer: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(key: Tensor, value: Tensor) -> _KVBuffer:
        buffer_pair = _KVBuffer._new(key.new_empty(key.numel() + value.numel()), key.shape, value.shape)
        buffer_pair.key.copy_(key)
        buffer_pair.value.copy_(value)
        return buffer_pair

    def blank(self, length: int) -> _KVBuffer:
        """A packet of the same kind for a share of another length, to be filled."""
        key, value = with_length(self.key.shape, length), with_length(self.value.shape, length)
        return _KVBuffer._new(self.buffer.new_empty(key.numel() + value.numel()), key, value)

    def zeros(self, dtype: torch.dtype) -> _KVBuffer:
        """A packet of the same shape that holds zeros."""
        return _KVBuffer._new(torch.zeros_like(self.buffer, dtype=dtype), self.key.shape, self.value.shape)

    @staticmethod
    def _new(buffer: Tensor, key: torch.Size, value: torch.Size) -> _KVBuffer:
        keys, values = buffer.split((key.numel(), value.numel()))
        return _KVBuffer(buffer, keys.view(key), values.view(value))


class _Transfer(NamedTuple):
    """A packet that leaves, kept until it is gone, and one that arrives."""

    leaving: _KVBuffer
    arriving: _KVBuffer
    works: list[dist.Work]

    def wait(self) -> _KVBuffer:
        for work in self.works:
            work.wait()
        return self.arriving


class _RingPlan(NamedTuple):
    """One attention over the ranks, without its numbers."""

    ring: _Ring
    plans: tuple[Plan | None, ...]


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, job: _RingPlan, query: Tensor, key: Tensor, value: Tensor):
        output, lse = _forward(job, query, key, value)
        # The lse is kept in another shape than attend keeps it: a checkpoint that computes this again outside of
        # context_parallel would attend to this rank's keys alone, and only by the shapes can it notice.
        ctx.save_for_backward(query, key, value, output, lse[..., None])
        ctx.job = job
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        def compute(above, lse_above, query, key, value, output, lse) -> Gradients:
            return _backward(ctx.job, (above, lse_above), (query, key, value), output, lse.squeeze(-1))

        return None, *first_order("ring", compute, *gradients, *ctx.saved_tensors)


def _forward(job: _RingPlan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse of this rank's rows; the keys of the next step travel while those at hand are read."""
    ring, last = job.ring, job.ring.shards.ranks - 1
    precise = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=precise)
    lse = empty_lse(query)
    held = _KVBuffer.of(key, value)
    with torch.autocast(query.device.type, enabled=False):
        for step in range(last + 1):
            passage = ring.send_to_next(held, step) if step < last else None
            plan = job.plans[ring.owner_at(step)]
            if plan is not None:
                merge_partials(output, lse, *forward(plan, query, held.key, held.value), first=step == 0)
            held = held if passage is None else passage.wait()
    return output.to(query.dtype), lse.to(precise)


def _backward(
    job: _RingPlan,
    gradients: tuple[Tensor | None, Tensor | None],
    tensors: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's tensors. Those of keys and values follow them, one step behind, and so come home."""
    ring, ranks, precise = job.ring, job.ring.shards.ranks, lse.dtype
    query, key, value = tensors
    # Converted once: what has this dtype passes every step as it is.
    rows, output = query.to(precise), output.to(precise)
    above = None if gradients[0] is None else gradients[0].to(precise)
    query_sum, held, sums = torch.zeros_like(rows), _KVBuffer.of(key, value), None
    with torch.autocast(query.device.type, enabled=False):
        for step in range(ranks):
            passage = ring.send_to_next(held, step) if step < ranks - 1 else None
            plan = job.plans[ring.owner_at(step)]
            if plan is None:
                added = held.zeros(precise)
            else:
                part, *others = backward(plan, (above, gradients[1]), (rows, held.key, held.value), output, lse)
                query_sum += part
                added = _KVBuffer.of(*others)
            if sums is not None:
                added.buffer.add_(sums.wait().buffer)
            sums = ring.send_to_next(added, step)
            held = held if passage is None else passage.wait()
    assert sums is not None
    home = sums.wait()
    return query_sum.to(query.dtype), home.key.to(key.dtype), home.value.to(value.dtype)
