"""A matrix on a device without float64 has the statistics of one on the CPU, on that device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope import AttentionMatrix, Bias, Causal, Padding, from_bool
from attnscope.attention import Mask
from tests.devices.standin import Standins

TOKENS = 70
QUERY, KEY = (torch.randn(2, 2, TOKENS, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
KEEP = torch.ones(2, TOKENS, dtype=torch.bool)
KEEP[0, :9] = False
MASKS = {
    "causal": Causal(),
    "padding": Causal() & Padding(keep=KEEP),
    "booleans": from_bool(attend=torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()),
}
STATISTICS: dict[str, Callable[[AttentionMatrix], object]] = {
    "lse": lambda matrix: matrix.lse,
    "entropy": lambda matrix: matrix.entropy(),
    "received": lambda matrix: matrix.received(),
    "sample": lambda matrix: matrix.sample(8, 8, rows_per_bin=3),
    "summary": lambda matrix: matrix.summary(8, 8, pairings=[(torch.arange(TOKENS) // 2, torch.arange(TOKENS) // 2)]),
    "bins": lambda matrix: matrix.bins([0, 30, TOKENS], [0, 11, TOKENS]),
    "effective_keys": lambda matrix: matrix.effective_keys(),
    "distance": lambda matrix: matrix.distance(),
    "topk": lambda matrix: matrix.topk(3),
    "max": lambda matrix: matrix.max(),
    "at": lambda matrix: matrix.at([3, 9], [2, 4]),
    "rows": lambda matrix: matrix[..., 3:9, :],
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_statistics_are_computed_without_float64(
    statistic: Callable[[AttentionMatrix], object], mask: Mask, bias: bool
) -> None:
    score_mod = Bias(torch.linspace(0, 1, TOKENS).expand(TOKENS, TOKENS).bfloat16()) if bias else None
    matrix = AttentionMatrix(QUERY, KEY, mask=mask, score_mod=score_mod)
    expected = statistic(matrix)
    with torch.no_grad(), Standins():
        found = statistic(matrix.to("mps"))
    for one, other in zip(_tensors(found), _tensors(expected), strict=True):
        assert one.device.type == "mps"
        with Standins():
            torch.testing.assert_close(one.cpu(), other, atol=1e-4, rtol=1e-4, equal_nan=True)


def _tensors(found: object) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [one for one in found if isinstance(one, Tensor)] if isinstance(found, tuple) else []
