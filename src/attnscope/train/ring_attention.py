"""Ring attention: exact attention over one long sequence that is sharded over the ranks of a process group.

In: each rank's shard of queries, keys and values, and a mask of the whole sequence. Out: each rank's shard of the
output, exact. Keys and values are sent around a ring of ranks, and each rank merges partial outputs by their lse; in
the backward pass they are sent again, with their gradients. Inside `context_parallel`, every `attend` does so.
Does not know: models, batches, losses. The caller sums losses and gradients of parameters over the ranks.
Memory of a rank: O(length / ranks). Saved for the backward pass: its own query, key, value, output and lse.

The tests run this on CPUs with gloo. Other devices use the same ring and the same merge, with partial outputs of the
streaming backend instead of the fused one, which is tested on the CPU. NCCL has not been tested.
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
    """Which positions each rank holds: of 2 * ranks chunks of a sequence, number `rank` from the start and the end.

    Late queries of a causal mask see more keys than early ones; this order balances the load (zigzag).

    Args:
        sequence_length: The number of positions of the whole sequence.
        ranks: The number of ranks.

    Raises:
        SettingError: One of them is less than 1.

    >>> ContextShards(sequence_length=10, ranks=2).spans(0), ContextShards(sequence_length=10, ranks=2).spans(1)
    (((0, 2), (7, 10)), ((2, 7),))
    """

    sequence_length: int
    ranks: int

    def __post_init__(self) -> None:
        if self.sequence_length < 1 or self.ranks < 1:
            raise SettingError(f"{self}: it takes one position and one rank at least")

    def spans(self, rank: int) -> Ranges:
        """The ranges [start, stop) of a rank, in order; fewer than two if the sequence is short."""
        if not 0 <= rank < self.ranks:
            raise SettingError(f"{self}: asked for rank {rank}; there are ranks 0 to {self.ranks - 1}")
        (first, first_stop), (second, stop) = self._chunk(rank), self._chunk(2 * self.ranks - 1 - rank)
        both = ((first, stop),) if first_stop == second else ((first, first_stop), (second, stop))
        return tuple(piece for piece in both if piece[0] < piece[1])

    def positions(self, rank: int) -> Tensor:
        """The position ids of a rank in the order of its shard, (shard length,).

        >>> ContextShards(sequence_length=10, ranks=2).positions(0)
        tensor([0, 1, 7, 8, 9])
        """
        return self.take(torch.arange(self.sequence_length), rank, 0)

    def take(self, tensor: Tensor, rank: int, dim: int) -> Tensor:
        """The shard of a rank, of a tensor of the whole sequence.

        Args:
            tensor: A tensor with all positions.
            rank: The rank.
            dim: The dimension of the positions.

        Raises:
            ShapeError: The dimension has another length than the sequence.
        """
        if tensor.shape[dim] != self.sequence_length:
            raise ShapeError(f"{self}: dimension {dim} of {tuple(tensor.shape)} does not have the whole sequence")
        spans = [tensor.narrow(dim, start, stop - start) for start, stop in self.spans(rank)]
        return torch.cat(spans, dim) if spans else tensor.narrow(dim, 0, 0)

    def _chunk(self, chunk: int) -> tuple[int, int]:
        chunks = 2 * self.ranks
        return chunk * self.sequence_length // chunks, (chunk + 1) * self.sequence_length // chunks


def context_parallel(shards: ContextShards, group: dist.ProcessGroup | None = None) -> AbstractContextManager[object]:
    """Inside this block, `attend` takes this rank's shard and attends to the whole sequence; see `ring_attention`.

    A decoder takes its shard of the token ids and `position_ids=shards.positions(rank)`. The backward pass may run
    inside the block or after it. Attention functions of PyTorch raise an error inside.

    Activation checkpointing computes attention again in the backward pass, outside of the block. Pass it a block:
    `checkpoint(..., use_reentrant=False, context_fn=lambda: (nullcontext(), context_parallel(shards, group)))`. Without
    it, an error is raised. Reentrant checkpointing is not detected and must not be used.

    Args:
        shards: How the sequence is divided.
        group: The process group; the default group if None.

    Raises:
        SettingError: There is no process group, or it has another number of ranks.
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
    """`attend` for this rank's shard of the queries and the keys of all ranks.

    Output and lse are differentiable, once. Every rank of the group must make the same calls with the same batch size
    and heads, and must run the backward pass if one of them does.

    Args:
        query: This rank's shard, (..., heads, shard length, dim).
        key: This rank's shard, (..., key heads, shard length, dim).
        value: This rank's shard, (..., key heads, shard length, value dim).
        shards: How the sequence is divided.
        group: The process group; the default group if None.
        mask: A mask of the whole sequence, as a short list of rectangles: Causal, Window, Documents, Padding, Prefix
            and their combinations by `&`, `|` and `~`.
        scale: Multiplies the scores; 1 / sqrt(dim) if None.
        return_lse: Whether to return the log-sum-exp of the scores of each query, too.

    Returns:
        This rank's shard of the output, (..., heads, shard length, value dim), and of the lse if asked for.

    Raises:
        ShapeError: A tensor is not this rank's shard.
        UnsupportedError: The mask is not a short list of rectangles.
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
        _Ring(shards, group)  # raises before the block is entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is attend:
            return self._attend(*args, **(kwargs or {}))
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            raise UnsupportedError(
                f"context_parallel: {func.__name__} was called, which would see only this rank's shard of the keys; "
                "call attnscope.attend, or call it outside of the block"
            )
        return func(*args, **(kwargs or {}))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **of: Any) -> Tensor | tuple[Tensor, Tensor]:
        asked = {"score_mod": of.pop("score_mod"), "dropout": of.pop("dropout"), "backend": of.pop("backend")}
        for name, plain in (("score_mod", None), ("dropout", 0.0), ("backend", "auto")):
            if asked[name] != plain:
                raise UnsupportedError(
                    f"context_parallel: attend was called with {name}={asked[name]!r}, which is not supported over "
                    f"several ranks; call it with {name}={plain!r}, or attend to the whole sequence on one rank"
                )
        return ring_attention(query, key, value, shards=self.shards, group=self.group, **of)


class _Ring:
    """The ring of ranks: whose keys this rank has at each step, and transfers to the next rank."""

    def __init__(self, shards: ContextShards, group: dist.ProcessGroup | None) -> None:
        if not dist.is_initialized():
            raise SettingError("ring_attention: there is no process group; call torch.distributed.init_process_group")
        self.shards, self.group, self.rank = shards, group, dist.get_rank(group)
        if self.rank < 0 or dist.get_world_size(group) != shards.ranks:
            size = f"has {dist.get_world_size(group)} ranks" if self.rank >= 0 else "does not have this process"
            raise SettingError(f"ring_attention: {shards} was given with a group that {size}")

    def check(self, signature: Signature) -> None:
        """Raise ShapeError unless the tensors are this rank's shard."""
        length = total_length(self.shards.spans(self.rank))
        lengths = {shape[-2] for shape in signature[:3] if len(shape) > 1}
        if lengths != {length}:
            found = f"query {tuple(signature.query)}, key {tuple(signature.key)}, value {tuple(signature.value)}"
            raise ShapeError(
                f"ring_attention: rank {self.rank} holds {length} positions of {self.shards}; got {found}. Slice "
                "each tensor with shards.take; a KV cache cannot be sharded"
            )

    def plans(self, signature: Signature, mask: Mask, scale: float | None) -> tuple[Plan | None, ...]:
        """The plan for the keys of each rank; None where the mask excludes all of them."""
        spec = self._whole(signature, mask, scale)
        region_mask = mask.to_regions(spec.sizes)
        if region_mask is None:
            raise UnsupportedError(
                f"ring_attention: the mask {mask} is not a short list of rectangles; use Causal, Window, "
                "Documents, Padding and Prefix, or attend to the whole sequence on one rank"
            )
        spans = [self.shards.spans(rank) for rank in range(self.shards.ranks)]
        return tuple(plan_partial(spec, region_mask, spans[self.rank], columns) for columns in spans)

    def _whole(self, signature: Signature, mask: Mask, scale: float | None) -> AttentionSpec:
        query, key, value = (with_length(shape, self.shards.sequence_length) for shape in signature[:3])
        whole = signature._replace(query=query, key=key, value=value)
        return make_spec(whole, mask=mask, scale=scale, score_mod=None, dropout=0.0)

    def owner_at(self, step: int) -> int:
        """The rank whose keys are here at a step."""
        return (self.rank - step) % self.shards.ranks

    def send_to_next(self, kv: _KVBuffer, step: int) -> _Transfer:
        """Begin to send a buffer to the next rank and to receive that of the previous one."""
        if self.shards.ranks == 1:
            return _Transfer(kv, kv, [])
        arriving = kv.blank(total_length(self.shards.spans(self.owner_at(step + 1))))
        after, before = self.owner_at(-1), self.owner_at(1)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, kv.buffer, group=self.group, group_peer=after),
                dist.P2POp(dist.irecv, arriving.buffer, group=self.group, group_peer=before),
            ]
        )
        return _Transfer(kv, arriving, works)


class _KVBuffer(NamedTuple):
    """Keys and values of a rank, (batch, key heads, shard length, ...), in one contiguous buffer.

    A transposed view of activations would be sent in the order of its memory, not of its positions.
    """

    buffer: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(key: Tensor, value: Tensor) -> _KVBuffer:
        kv = _KVBuffer._new(key.new_empty(key.numel() + value.numel()), key.shape, value.shape)
        kv.key.copy_(key)
        kv.value.copy_(value)
        return kv

    def blank(self, length: int) -> _KVBuffer:
        """An uninitialized buffer for a shard of another length."""
        key, value = with_length(self.key.shape, length), with_length(self.value.shape, length)
        return _KVBuffer._new(self.buffer.new_empty(key.numel() + value.numel()), key, value)

    def zeros(self, dtype: torch.dtype) -> _KVBuffer:
        """A buffer of the same shape, filled with zeros."""
        return _KVBuffer._new(torch.zeros_like(self.buffer, dtype=dtype), self.key.shape, self.value.shape)

    @staticmethod
    def _new(buffer: Tensor, key: torch.Size, value: torch.Size) -> _KVBuffer:
        keys, values = buffer.split((key.numel(), value.numel()))
        return _KVBuffer(buffer, keys.view(key), values.view(value))


class _Transfer(NamedTuple):
    """A buffer that is being sent, which must stay alive until then, and one that is being received."""

    leaving: _KVBuffer
    arriving: _KVBuffer
    works: list[dist.Work]

    def wait(self) -> _KVBuffer:
        for work in self.works:
            work.wait()
        return self.arriving


class _RingPlan(NamedTuple):
    """The plans of one ring attention, without tensors."""

    ring: _Ring
    plans: tuple[Plan | None, ...]


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, job: _RingPlan, query: Tensor, key: Tensor, value: Tensor):
        output, lse = _forward(job, query, key, value)
        # The shape of the saved lse differs from that of attend: activation checkpointing outside of context_parallel
        # would attend only to this rank's keys, and detects it by the shapes of saved tensors.
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
    """Output and lse of this rank's queries; keys are transferred while those of the current step are used."""
    ring, last = job.ring, job.ring.shards.ranks - 1
    precise = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=precise)
    lse = empty_lse(query)
    held = _KVBuffer.of(key, value)
    with torch.autocast(query.device.type, enabled=False):
        for step in range(last + 1):
            transfer = ring.send_to_next(held, step) if step < last else None
            plan = job.plans[ring.owner_at(step)]
            if plan is not None:
                merge_partials(output, lse, *forward(plan, query, held.key, held.value), first=step == 0)
            held = held if transfer is None else transfer.wait()
    return output.to(query.dtype), lse.to(precise)


def _backward(
    job: _RingPlan,
    gradients: tuple[Tensor | None, Tensor | None],
    tensors: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's tensors; those of keys and values follow them one step behind, back to their rank."""
    ring, ranks, precise = job.ring, job.ring.shards.ranks, lse.dtype
    query, key, value = tensors
    # Converted once, before the steps.
    rows, output = query.to(precise), output.to(precise)
    above = None if gradients[0] is None else gradients[0].to(precise)
    query_sum, held, sums = torch.zeros_like(rows), _KVBuffer.of(key, value), None
    with torch.autocast(query.device.type, enabled=False):
        for step in range(ranks):
            transfer = ring.send_to_next(held, step) if step < ranks - 1 else None
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
            held = held if transfer is None else transfer.wait()
    assert sums is not None
    own = sums.wait()
    return query_sum.to(query.dtype), own.key.to(key.dtype), own.value.to(value.dtype)
