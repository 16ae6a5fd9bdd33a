"""Attention by the CPU's fused kernel, for every mask that is a short list of rectangles.

In: query, key and value, and the tiles that a mask was cut into. Each tile is one kernel call; where rows are
covered by several tiles, the partial outputs are merged by their lse. The backward calls the kernel's backward for
each tile with the lse and output of the whole row, which is exact. Memory: O(n), whatever the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import kernels
from attnscope.attention.first_order import first_order
from attnscope.attention.tiles import Kind, Tile


class Group(NamedTuple):
    """Batch rows that share their tiles."""

    batch: slice
    tiles: tuple[Tile, ...]


class Work(NamedTuple):
    """All kernel calls of one attention.

    `bias` (batch or 1, heads or 1, keys) is added to the scores of a key, whatever the query; -inf drops the key.
    """

    groups: tuple[Group, ...]
    scale: float
    bias: Tensor | None
    alone: Kind | None  # set when one call over all batch rows, queries and keys is the whole work


def make_work(groups: tuple[Group, ...], queries: int, keys: int, scale: float, bias: Tensor | None = None) -> Work:
    """The calls for these tiles of a queries x keys matrix."""
    alone = None
    if bias is None and len(groups) == 1 and groups[0].batch == slice(None) and len(groups[0].tiles) == 1:
        tile = groups[0].tiles[0]
        whole = tile.times == 1 and tile.height == queries and tile.width == keys
        alone = tile.kind if whole and tile.kind is not Kind.DENSE else None
    return Work(groups, scale, bias, alone)


def bias_of(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """0 for the keys to keep, (batch or 1, keys), and -inf for the others."""
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill_(~keep, -math.inf)[:, None]


def solve(work: Work, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse; both differentiable, once."""
    assert query.shape[0] == key.shape[0] == value.shape[0], "the kernel does not check, and would read past the end"
    assert query.shape[1] % key.shape[1] == 0 and key.shape[1] == value.shape[1], "nor does it check heads"
    value_width = value.shape[-1]
    work, query, key, value = fitted(work, query, key, value)
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        output, lse = _Fused.apply(query, key, value, work)
    else:
        output, lse = forward(work, query, key, value)
        if output.dtype != query.dtype:  # a call that does nothing costs tens of microseconds behind a kernel
            output = output.to(query.dtype)
    return (output if value_width == output.shape[-1] else output[..., :value_width]), lse


def fitted(work: Work, query: Tensor, key: Tensor, value: Tensor) -> tuple[Work, Tensor, Tensor, Tensor]:
    """The same attention as the kernel wants it: a scale above 0, and one width for query, key and value."""
    if work.scale <= 0:  # the kernel's causal mask is -inf before the scale
        query, work = query * work.scale, work._replace(scale=1.0)
    width = max(query.shape[-1], value.shape[-1])  # columns of zeros change nothing
    return work, widened(query, width), widened(key, width), widened(value, width)


def widened(tensor: Tensor, width: int) -> Tensor:
    """The tensor with columns of zeros up to this width, each row in one stretch of memory."""
    if tensor.shape[-1] < width:
        return F.pad(tensor, (0, width - tensor.shape[-1]))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, work: Work):
        output, lse = forward(work, query, key, value)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        def compute(output_gradient, lse_gradient, query, key, value, output, lse):
            return backward(ctx.work, Saved(query, key, value, output, lse), output_gradient, lse_gradient)

        return *first_order("fused", compute, *gradients, *ctx.saved_tensors), None


class Saved(NamedTuple):
    """What the backward needs of the forward: output and lse are those of whole rows, over all of their keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    lse: Tensor


def forward(work: Work, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse of `fitted` tensors; an output that was merged from several calls is fp32 at least."""
    if work.alone is not None:
        return kernels.flash(query, key, value, causal=work.alone is Kind.CAUSAL, scale=work.scale)
    precise = torch.promote_types(query.dtype, torch.float32)
    output = torch.zeros_like(query, dtype=precise)
    lse = no_keys_yet(query)
    for group in work.groups:
        reached = 0
        for tile in group.tiles:
            fresh, reached = tile.region.top >= reached, max(reached, tile.last_row)
            for call in _calls(work, group, tile, query):
                part = call.run(call.rows_of(query), call.columns_of(key), call.columns_of(value), work.scale)
                merge_many(call.rows_of(output), call.rows_of(lse), *part, fresh)
    return output, lse.to(precise)


def merge(output: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, fresh: bool) -> None:
    """Add a partial softmax over other keys to `output` and `lse`, in place; `fresh` rows only take a copy."""
    if fresh:
        output.copy_(part)
        lse.copy_(part_lse)
        return
    total = torch.logaddexp(lse, part_lse)
    finite = total.masked_fill(total == -math.inf, 0.0)  # a row that has no key yet: both shares are exp(-inf) = 0
    output.mul_((lse - finite).exp_()[..., None]).addcmul_(part.to(output), (part_lse - finite).exp_()[..., None])
    lse.copy_(total)


def no_keys_yet(query: Tensor) -> Tensor:
    """The fp64 lse of rows that `merge_many` will merge into: -inf."""
    return torch.full(query.shape[:-1], -math.inf, dtype=torch.float64, device=query.device)


def merge_many(output: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, fresh: bool) -> None:
    """`merge` for rows that are merged time and again: rounding lse to fp32 each time would cost eps * |lse| each.

    Here lse is fp64, and what is merged are its distances from the larger of both, which are near 0 where they matter.
    """
    if fresh:
        merge(output, lse, part, part_lse, fresh)
        return
    base = torch.maximum(lse, part_lse)
    base.masked_fill_(base == -math.inf, 0.0)
    distance = (lse - base).to(output.dtype)
    merge(output, distance, part, (part_lse - base).to(output.dtype), fresh)
    lse.copy_(base + distance)


def backward(
    work: Work, saved: Saved, output_gradient: Tensor | None, lse_gradient: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `fitted` query, key and value, in their dtype; the keys may be some of those that rows have."""
    saved = saved._replace(lse=saved.lse.masked_fill(saved.lse == -math.inf, 0.0))  # no key: exp(-inf - 0) = 0
    if output_gradient is not None and output_gradient.stride(-1) != 1:
        output_gradient = output_gradient.contiguous()
    if work.alone is not None and lse_gradient is None and output_gradient is not None:
        causal = work.alone is Kind.CAUSAL
        return kernels.flash_backward(output_gradient, *saved, causal=causal, scale=work.scale)
    dtype, precise = saved.query.dtype, saved.lse.dtype
    # The kernel rounds each part to the dtype of its inputs, and many rounded parts add up to a worse sum than one.
    saved = Saved(*(tensor.to(precise) for tensor in saved))
    output_gradient = None if output_gradient is None else output_gradient.to(precise)
    query, key, value = saved.query, saved.key, saved.value
    sums = tuple(torch.zeros_like(tensor) for tensor in (query, key, value))
    for group in work.groups:
        for tile in group.tiles:
            for call in _calls(work, group, tile, query):
                part = Saved(
                    call.rows_of(query),
                    call.columns_of(key),
                    call.columns_of(value),
                    call.rows_of(saved.output),
                    call.rows_of(saved.lse),
                )
                if output_gradient is not None:
                    call.add(sums, call.pull(call.rows_of(output_gradient), part, work.scale))
                if lse_gradient is not None:
                    call.add(sums, _pull_lse(call, call.rows_of(lse_gradient), part, work.scale))
    return sums[0].to(dtype), sums[1].to(dtype), sums[2].to(dtype)


def _pull_lse(call: _Call, gradient: Tensor, part: Saved, scale: float) -> tuple[Tensor, Tensor, None]:
    """Gradients of lse = logsumexp(scale * q.k): scale * P @ K for the queries, its transpose for the keys.

    Both are attention with the keys as values: a forward call, and the value gradient of a backward call.
    """
    weight = gradient[..., None] * scale
    mean_key, part_lse = call.run(part.query, part.key, part.key, scale)
    share = (part_lse - part.lse).exp_()[..., None]  # of the row's whole softmax, this tile holds so much
    weighted = (weight * part.query).to(part.query.dtype)
    as_values = part._replace(value=part.key, output=torch.zeros_like(part.query))
    return weight * share * mean_key, call.pull(weighted, as_values, scale)[2], None


class _Call(NamedTuple):
    """One kernel call: where its rows and columns lie and what the kernel is told about them."""

    tile: Tile
    batch: slice | int  # an int where repetitions of the tile take the place of the batch
    mask: Tensor | None
    seen: Tensor | None  # (batch, heads or 1, rows): whether a row has a key here; None where all have

    def rows_of(self, tensor: Tensor) -> Tensor:
        return _stretch(tensor, self.batch, self.tile.region.top, self.tile.height, self.tile)

    def columns_of(self, tensor: Tensor) -> Tensor:
        return _stretch(tensor, self.batch, self.tile.region.left, self.tile.width, self.tile)

    def run(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        causal = self.tile.kind is Kind.CAUSAL
        output, lse = kernels.flash(query, key, value, causal=causal, scale=scale, mask=self.mask)
        if self.seen is None:
            return output, lse
        return output.masked_fill(~self.seen[..., None], 0.0), lse.masked_fill(~self.seen, -math.inf)

    def pull(self, gradient: Tensor, saved: Saved, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        causal = self.tile.kind is Kind.CAUSAL
        return kernels.flash_backward(gradient, *saved, causal=causal, scale=scale, mask=self.mask)

    def add(self, sums: tuple[Tensor, ...], parts: tuple[Tensor | None, ...]) -> None:
        """Add a call's gradients to those of the whole tensors."""
        query, key, value = parts
        assert query is not None and key is not None
        self.rows_of(sums[0]).add_(query)
        # Repetitions may share columns, and sums into shared memory get lost. Those that stand `apart` share none.
        apart = 1 if self.tile.times == 1 else -(-self.tile.width // self.tile.step)
        for first in range(min(apart, self.tile.times)):
            turn = slice(first, None, apart) if self.tile.times > 1 else slice(None)
            self.columns_of(sums[1])[turn].add_(key[turn])
            if value is not None:
                self.columns_of(sums[2])[turn].add_(value[turn])


def _calls(work: Work, group: Group, tile: Tile, query: Tensor) -> Iterator[_Call]:
    """The calls of one tile: one for all batch rows, or one a batch row when the tile repeats."""
    allowed = _inside(tile, query.device) if tile.kind is Kind.DENSE else None
    rows = range(query.shape[0])[group.batch]
    for batch in [group.batch] if tile.times == 1 else rows:
        bias = None if work.bias is None else _bias_here(work.bias, batch, tile).to(query.dtype)
        yield _Call(tile, batch, _additive(allowed, bias, query.dtype), _rows_with_keys(tile, allowed, bias))


def _bias_here(bias: Tensor, batch: slice | int, tile: Tile) -> Tensor:
    """The bias of a tile's columns, (batch or 1, heads or 1, 1, columns)."""
    where = batch if bias.shape[0] > 1 else (slice(None) if isinstance(batch, slice) else 0)
    return _stretch(bias[..., None], where, tile.region.left, tile.width, tile).transpose(-1, -2)


def _additive(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What the kernel adds to the scores of a tile: the bias, and -inf outside its region."""
    if allowed is None:
        return bias
    if bias is None:
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -math.inf)
    return bias.masked_fill(~allowed, -math.inf)


def _rows_with_keys(tile: Tile, allowed: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """(batch, heads or 1, rows): the rows with a real key in this tile, whose lse alone is right; None if all have."""
    if bias is None:
        return None
    real = bias > -math.inf
    if allowed is not None:
        seen = (allowed & real).any(-1)
    elif tile.kind is Kind.FULL:
        seen = real.any(-1).expand(-1, -1, tile.height)
    else:
        reach = torch.arange(tile.height, device=bias.device).clamp(max=tile.width - 1)
        seen = real.cumsum(-1)[..., 0, reach] > 0
    return None if seen.all() else seen


def _inside(tile: Tile, device: torch.device) -> Tensor:
    """The cells of a dense tile that belong to its region."""
    region = tile.region
    rows = torch.arange(region.top, region.bottom, device=device)[:, None]
    distance = torch.arange(region.left, region.right, device=device)[None, :] - rows
    return (distance >= region.lowest) & (distance <= region.highest)


def _stretch(tensor: Tensor, batch: slice | int, start: int, length: int, tile: Tile) -> Tensor:
    """A view of positions [start, start + length) of (batch, heads, positions, ...); with an int, all repetitions."""
    if isinstance(batch, slice):
        return tensor[batch, :, start : start + length]
    stop = start + (tile.times - 1) * tile.step + length
    windows = tensor[batch, :, start:stop].unfold(1, length, tile.step)  # (heads, count, ..., length)
    return windows.transpose(0, 1) if windows.dim() == 3 else windows.permute(1, 0, 3, 2)
