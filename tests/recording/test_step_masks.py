"""Masks one below the other say what each of them says about its own rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Padding, Prefix, Window, attend, from_bool
from attnscope.attention.algebra import Mask, Sizes
from attnscope.attention.operation import Backend
from attnscope.errors import ShapeError
from attnscope.recording.layers.step_masks import StackedMask, Step

GENERATOR = torch.Generator().manual_seed(0)
STEPS = {
    "causal pieces": [(Causal(), 4, 0, 4), (Causal(), 3, 0, 7), (Causal(), 1, 0, 8)],
    "windows of a cache that forgets": [(Window(3), 5, 0, 5), (Window(3), 2, 2, 7), (Causal(), 1, 5, 8)],
    "whole pieces": [(Full(), 3, 0, 3), (Full(), 3, 0, 6), (Prefix(2), 2, 0, 8)],
    "one number a batch row": [(Causal() & ~Prefix((0, 2)), 6, 0, 6), (Causal() & ~Prefix((0, 2)), 2, 0, 8)],
    "documents": [(Documents([0, 0, 1, 1]), 4, 0, 4), (Documents([0, 0, 1, 1, 1, 2, 2, 2]), 4, 0, 8)],
    "scattered padding": [(Padding(keep=torch.rand(2, 8, generator=GENERATOR) > 0.5), 8, 0, 8)],
    "booleans": [(from_bool(attend=torch.rand(2, 1, 5, 6, generator=GENERATOR) > 0.3), 5, 0, 6), (Full(), 3, 0, 8)],
}


def stacked(name: str) -> tuple[StackedMask, Tensor]:
    """The mask, and what it should say, put together by hand."""
    steps, rows, top = [], [], 0
    for mask, count, left, right in STEPS[name]:
        steps.append(Step(mask, top, top + count, left, right))
        dense = mask.to_dense(Sizes(2, 3, count, right - left)).expand(2, 3, -1, -1)
        rows.append(torch.nn.functional.pad(dense, (left, 8 - right)))
        top += count
    return StackedMask(tuple(steps)), torch.cat(rows, dim=2)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_speaks_for_its_own_rows(name: str):
    mask, expected = stacked(name)
    sizes = Sizes(2, 3, 8, 8)
    mask.check(sizes)
    assert torch.equal(mask.to_dense(sizes).expand(2, 3, 8, 8), expected)
    rows, columns = torch.tensor([7, 0, 5])[:, None], torch.tensor([1, 6])[None]
    assert torch.equal(mask.allows(rows, columns, sizes).expand(2, 3, 3, 2), expected[:, :, [7, 0, 5]][..., [1, 6]])
    lowered = mask.to_regions(sizes)
    assert (lowered is None) == (name in ("scattered padding", "booleans"))


@pytest.mark.parametrize("name", STEPS)
def test_attention_obeys_it_by_every_engine(name: str):
    mask, expected = stacked(name)
    query, key, value = (torch.randn(2, 3, 8, 4, dtype=torch.float64, generator=GENERATOR) for _ in range(3))
    truth = attend(query, key, value, mask=from_bool(attend=expected), backend="reference")
    backends: tuple[Backend, ...] = ("reference", "streaming", "auto")
    for backend in backends:
        torch.testing.assert_close(attend(query, key, value, mask=mask, backend=backend), truth)


def test_batch_rows_and_heads_can_be_taken_alone():
    mask, expected = stacked("one number a batch row")
    alone: Mask = mask.narrow(slice(1, 2), [0, 2])
    assert torch.equal(alone.to_dense(Sizes(1, 2, 8, 8)).expand(1, 2, 8, 8), expected[1:, [0, 2]])


def test_rows_that_do_not_make_up_the_matrix_are_refused():
    mask, _ = stacked("causal pieces")
    with pytest.raises(ShapeError, match="9 queries"):
        mask.check(Sizes(1, 1, 9, 9))
    with pytest.raises(ShapeError, match="7 columns, got 8"):
        mask.check(Sizes(1, 1, 8, 7))
    gap = StackedMask((Step(Full(), 0, 2, 0, 4), Step(Full(), 3, 4, 0, 4)))
    with pytest.raises(ShapeError, match="cover 4 queries"):
        gap.check(Sizes(1, 1, 4, 4))


@dataclass(frozen=True)
class CountingMask(Mask):
    """A full mask that counts the cells it evaluates."""

    cells: list[int] = field(default_factory=list)

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        self.cells.append(torch.broadcast_tensors(query, key)[0].numel())
        return torch.ones_like(query + key, dtype=torch.bool)

    def to_regions(self, sizes: Sizes) -> None:
        return None


def test_each_cell_is_evaluated_by_its_own_step_only():
    """The work of a block does not grow with the number of steps: generation would cost O(n^3)."""
    count = 50
    masks = [CountingMask() for _ in range(count)]
    mask = StackedMask(tuple(Step(one, at, at + 1, 0, at + 1) for at, one in enumerate(masks)))
    rows, columns = torch.arange(10, 30)[:, None], torch.arange(count)[None]
    allowed = mask.allows(rows, columns, Sizes(1, 1, count, count))
    assert torch.equal(allowed, columns <= rows)
    assert sum(sum(one.cells) for one in masks) == allowed.numel()


def test_no_cells_are_evaluated_for_an_empty_block():
    mask, _ = stacked("booleans")
    nothing = torch.empty(0, 1, dtype=torch.long)
    assert mask.allows(nothing, torch.arange(8)[None], Sizes(2, 3, 8, 8)).shape[-2:] == (0, 8)
