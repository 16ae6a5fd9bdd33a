"""Attention of some rows over some of their keys, to be merged with what others compute over the rest.

In: the rule of a whole attention, and which stretches of its rows and columns are at hand. Out: output and lse over
those columns alone, which `fused.merge_many` adds to those of other columns; and gradients, given output and lse of
whole rows. The engine is the one that `attend` would take: fused on the CPU, streaming on other devices.
Does not know: where the other columns are. Memory: O(rows + columns) at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.attention import fused, streaming
from attnscope.attention.algebra import Lowered, Mask, Sizes
from attnscope.attention.plan import Plan, make_plan
from attnscope.attention.regions import Region, columns_between, moved, rows_between
from attnscope.attention.rule import Rule

Stretches = tuple[tuple[int, int], ...]
"""Positions [start, stop) of a sequence that stand behind each other in a tensor."""


def length_of(stretches: Stretches) -> int:
    """How many positions there are.

    >>> length_of(((0, 3), (10, 12)))
    5
    """
    return sum(stop - start for start, stop in stretches)


def plan_part(whole: Rule, lowered: Lowered, rows: Stretches, columns: Stretches, backend: str = "auto") -> Plan | None:
    """What to do for these rows and columns of a whole attention, whose mask is `lowered`; None if they see nothing.

    The rule must be plain: scores that depend on positions, sinks and dropout speak of whole rows.
    """
    assert not whole.steps and whole.sinks is None and not whole.dropout
    signature, queries, keys = whole.signature, length_of(rows), length_of(columns)
    part = replace(
        whole,
        signature=signature._replace(
            query=with_length(signature.query, queries),
            key=with_length(signature.key, keys),
            value=with_length(signature.value, keys),
        ),
        sizes=whole.sizes._replace(queries=queries, keys=keys),
        mask=_Part(whole.mask, whole.sizes, lowered, rows, columns),
    )
    plan = make_plan(part, backend)
    return plan if plan.cells else None


def forward(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse over the columns at hand; a row that sees none of them gives 0 and -inf."""
    if plan.work is not None:
        work, query, key, fitted_value = fused.fitted(plan.work, query, key, value)
        output, lse = fused.forward(work, query, key, fitted_value)
        return output[..., : value.shape[-1]], lse
    return _walker(plan, query.to(plan.rule.precise), key, value).forward()


def backward(
    plan: Plan,
    gradients: tuple[Tensor | None, Tensor | None],
    tensors: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the columns at hand give to the gradients of query, key and value (`tensors`), in fp32 at least.

    `gradients` are those of output and lse. All four are of whole rows, over the columns at hand and all others.
    """
    precise = plan.rule.precise
    query, key, value = (tensor.to(precise) for tensor in tensors)
    above, lse_above = gradients
    above, output = None if above is None else above.to(precise), output.to(precise)
    if plan.work is None:
        results = _walker(plan, query, key, value).backward(above, lse_above, output, lse, wanted=(True, True, True))
        query_gradient, key_gradient, value_gradient = results
        assert query_gradient is not None and key_gradient is not None and value_gradient is not None
        return query_gradient, key_gradient, value_gradient
    dim, value_dim = query.shape[-1], value.shape[-1]
    work, query, key, value = fused.fitted(plan.work, query, key, value)
    saved = fused.Saved(query, key, value, fused.widened(output, value.shape[-1]), lse)
    above = None if above is None else fused.widened(above, value.shape[-1])
    query_gradient, key_gradient, value_gradient = fused.backward(work, saved, above, lse_above)
    if work.scale != plan.work.scale:  # the kernel was given scale * query
        query_gradient = query_gradient * plan.work.scale
    return query_gradient[..., :dim], key_gradient[..., :dim], value_gradient[..., :value_dim]


def _walker(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> streaming.Walker:
    assert plan.walk is not None, "the reference has no parts"
    return streaming.Walker(plan.rule, plan.walk, 0, (query, key, value))


@dataclass(frozen=True, eq=False, repr=False)
class _Part(Mask):
    """Some rows and columns of a mask, counted from 0 in the order in which they are at hand."""

    mask: Mask
    whole: Sizes
    lowered: Lowered  # the whole mask; kept, since many parts are cut from it
    rows: Stretches
    columns: Stretches

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.mask.allows(_positions(query, self.rows), _positions(key, self.columns), self.whole)

    def lower(self, sizes: Sizes) -> Lowered:
        keep = self.lowered.keep
        if keep is not None:
            keep = torch.cat([keep[:, :0], *(keep[:, start:stop] for start, stop in self.columns)], dim=1)
        return Lowered(tuple(self._cropped(regions) for regions in self.lowered.regions), keep)

    def _cropped(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        found: list[Region] = []
        down = 0
        for top, bottom in self.rows:
            strip, right = rows_between(regions, top, bottom), 0
            for left, stop in self.columns:
                found += moved(columns_between(strip, left, stop), down, right)
                right += stop - left
            down += bottom - top
        return tuple(found)

    def __repr__(self) -> str:
        return f"{self.mask} of rows {self.rows} and columns {self.columns}"


def _positions(index: Tensor, stretches: Stretches) -> Tensor:
    """The position in the whole sequence of what stands at an index of the stretches."""
    positions, before = index, 0
    for start, stop in stretches:
        positions = torch.where(index >= before, index + (start - before), positions)
        before += stop - start
    return positions


def with_length(shape: torch.Size, length: int) -> torch.Size:
    """The shape (..., position, dim) with another number of positions."""
    return torch.Size((*shape[:-2], length, shape[-1]))
