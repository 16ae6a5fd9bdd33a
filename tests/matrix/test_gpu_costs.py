"""What a GPU would have to do: kernels, bytes and waits of each statistic, counted at 8,192 tokens without a GPU.

One layer of 32 heads on 8 key heads, head dim 128, bf16, causal. "Streaming" is with a softcap, which no fused operator
of torch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnscope import AttentionMatrix, Causal, Softcap, Window, attend
from tests.devices.fake_cuda import Work, count_work, fake_cuda

TOKENS, HEADS, KEY_HEADS, DIM = 8192, 32, 8, 128
EDGES = list(range(0, TOKENS + 1, TOKENS // 64))


class Bound(NamedTuple):
    """A call and the most kernels that it may launch, fused and streaming."""

    call: Callable[[AttentionMatrix], object]
    fused: int
    streaming: int


BOUNDS = {
    "lse": Bound(lambda matrix: matrix.lse, 12, 600),
    "entropy": Bound(lambda matrix: matrix.entropy(), 24, 1100),
    "received": Bound(lambda matrix: matrix.received(), 44, 1050),
    "distance": Bound(lambda matrix: matrix.distance(), 1100, 1750),
    "topk": Bound(lambda matrix: matrix.topk(5), 530, 1200),
    "pool": Bound(lambda matrix: matrix.pool(64, 64), 42, 1110),
    "largest of bins": Bound(lambda matrix: matrix.pool(64, 64, "max"), 380, 1030),
    "summary": Bound(lambda matrix: matrix.summary(64, 64), 1000, 1650),
    "mass": Bound(lambda matrix: matrix.mass([0, 1, 2]), 16, 590),
    "bins": Bound(lambda matrix: matrix.bins(EDGES, EDGES), 700, 1400),
    "sample": Bound(lambda matrix: matrix.sample(64, 64), 120, 120),
}


@pytest.fixture
def layer() -> Iterator[tuple[Tensor, Tensor]]:
    with fake_cuda():
        yield (
            torch.empty(1, HEADS, TOKENS, DIM, device="cuda", dtype=torch.bfloat16),
            torch.empty(1, KEY_HEADS, TOKENS, DIM, device="cuda", dtype=torch.bfloat16),
        )


def test_attention_is_one_kernel_per_rectangle(layer: tuple[Tensor, Tensor]) -> None:
    query, key = layer
    output, work = count_work(lambda: attend(query, key, key, mask=Causal()))
    assert (output.shape, output.dtype, output.device) == (query.shape, query.dtype, query.device)
    assert dict(work.kernels) == {"_scaled_dot_product_flash_attention": 1}
    assert work.waits.total() == 0
    assert work.num_bytes <= 2.1 * (query.nbytes + key.nbytes)


@pytest.mark.parametrize("mask", [Causal(), Window(1024)], ids=str)
def test_attention_by_streaming_launches_few_kernels(layer: tuple[Tensor, Tensor], mask) -> None:
    query, key = layer
    _, work = count_work(lambda: attend(query, key, key, mask=mask, score_mod=Softcap(30.0)))
    assert work.num_kernels <= 800
    assert work.waits.total() == 0
    assert work.attention == {}


@pytest.mark.parametrize("name", BOUNDS)
def test_statistics_launch_few_kernels_and_never_wait(layer: tuple[Tensor, Tensor], name: str) -> None:
    query, key = layer
    bound = BOUNDS[name]
    for score_mod, most in ((None, bound.fused), (Softcap(30.0), bound.streaming)):
        matrix = AttentionMatrix(query, key, mask=Causal(), score_mod=score_mod)
        found, work = count_work(lambda matrix=matrix: bound.call(matrix))
        assert work.num_kernels <= most
        assert work.waits == {}
        assert {one.device.type for one in _tensors(found)} == {"cuda"}
        assert {one.dtype for one in _tensors(found)} <= {torch.float32, torch.long}
        _check_operators(work, is_fused=score_mod is None)


def test_rows_and_cells_are_read_without_waiting(layer: tuple[Tensor, Tensor]) -> None:
    matrix = AttentionMatrix(*layer, mask=Causal()).batch(0).head(3)
    for call in (lambda: matrix[100:110, :50], lambda: matrix.diagonal(-1), lambda: matrix.T @ matrix.lse):
        _, work = count_work(call)
        assert work.waits == {}
        assert work.num_kernels <= 150


def _check_operators(work: Work, *, is_fused: bool) -> None:
    """Statistics of 16-bit tensors are computed in fp32: flash attention is not exact enough."""
    assert set(work.attention) <= ({"_scaled_dot_product_efficient_attention"} if is_fused else set())
    for _, (query, key, value, bias, *_), _ in work.attention_calls:
        assert query.dtype == key.dtype == value.dtype == torch.float32
        assert query.shape[1] == key.shape[1] == HEADS
        assert bias is None or (bias.dtype == torch.float32 and bias.shape[:2] == query.shape[:2])


def _tensors(found: object) -> list[Tensor]:
    return [one for one in tree_leaves(found) if isinstance(one, Tensor)]
