"""Linear layers: whichever way is taken, the product is the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnscope.models.linear import MAX_ROWS, SPLIT_ROWS, SPLIT_SIZE, Linear, linear

COUNTS = sorted({1, 2, SPLIT_ROWS.start, SPLIT_ROWS.stop, MAX_ROWS, MAX_ROWS + 1})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [7, SPLIT_SIZE, 2 * SPLIT_SIZE + 5])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_every_way_is_as_exact_as_the_plain_one(dtype: torch.dtype, count: int, outputs: int, bias: bool) -> None:
    x, weight = torch.randn(count, 1, 40).to(dtype), torch.randn(outputs, 40).to(dtype)
    added = torch.randn(outputs).to(dtype) if bias else None
    exact = F.linear(x.double(), weight.double(), None if added is None else added.double())
    plain = (F.linear(x, weight, added).double() - exact).abs().max()
    found = linear(x, weight, added)
    assert (found.shape, found.dtype) == ((count, 1, outputs), dtype)
    assert (found.double() - exact).abs().max() <= 2 * plain + torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("shape", [(0, 3, 40), (1, 1, 40), (2, 4, 40), (40,)])
@torch.no_grad()
def test_leading_axes_stay(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert linear(torch.zeros(shape, dtype=dtype), torch.zeros(9, 40, dtype=dtype)).shape == (*shape[:-1], 9)


@pytest.mark.parametrize("count", COUNTS)
@torch.no_grad()
def test_autocast_decides_the_dtype(count: int) -> None:
    x, weight = torch.randn(count, 40), torch.randn(2 * SPLIT_SIZE, 40)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            assert torch.equal(linear(given, weight), F.linear(given, weight))


@torch.no_grad()
def test_it_can_be_mapped_over_a_batch() -> None:
    x, weight = torch.randn(3, SPLIT_ROWS.start, 40), torch.randn(2 * SPLIT_SIZE, 40)
    torch.testing.assert_close(torch.vmap(lambda row: linear(row, weight))(x), F.linear(x, weight))


def test_gradients_are_those_of_torch() -> None:
    ours, x = Linear(6, 2 * SPLIT_SIZE), torch.randn(SPLIT_ROWS.start, 6)
    ours(x).square().sum().backward()
    weight = ours.weight.detach().clone().requires_grad_()
    F.linear(x, weight, ours.bias).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, weight.grad)
