"""A matrix on a GPU has the statistics of one on the CPU, on that device, and the host does not wait for them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope import AttentionMatrix, Bias, Causal, Padding, Window, from_bool
from attnscope.attention import Mask
from tests.devices.standin import Standins

TOKENS = 70
QUERY, KEY = (torch.randn(2, heads, TOKENS, 6, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2))
KEEP = torch.ones(2, TOKENS, dtype=torch.bool)
KEEP[0, :9] = False
SCATTERED = torch.arange(2 * TOKENS).reshape(2, TOKENS) % 3 != 0
MASKS = {
    "causal": Causal(),
    "padding": Causal() & Padding(keep=KEEP),
    "scattered": Causal() & Padding(keep=SCATTERED),
    "window": Window(9),
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
    "mass": lambda matrix: (matrix.mass([0, 5]), matrix.mass(torch.arange(TOKENS, device=matrix.device) < 7)),
    "pool": lambda matrix: (matrix.pool(7, 8), matrix.pool(7, 8, "mass"), matrix.pool(7, 8, "max")),
    "transpose": lambda matrix: matrix.T @ matrix.lse.clamp(min=0.0)[..., None],
    "at": lambda matrix: matrix.at([3, 9], [2, 4]),
    "rows": lambda matrix: matrix[..., 3:9, :],
}


@pytest.mark.parametrize("device", ["mps", "cuda"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_on_a_device_are_those_on_the_cpu(statistic: str, mask: Mask, bias: bool, device: str) -> None:
    score_mod = Bias(torch.linspace(0, 1, TOKENS).expand(TOKENS, TOKENS).bfloat16()) if bias else None
    matrix = AttentionMatrix(QUERY, KEY, mask=mask, score_mod=score_mod)
    expected = STATISTICS[statistic](matrix)
    with torch.no_grad(), Standins() as standins:
        found = STATISTICS[statistic](matrix.to(device))
        waits = dict(standins.waits)
        moved = [(one.device.type, one.cpu()) for one in _tensors(found)]
    for (place, one), other in zip(moved, _tensors(expected), strict=True):
        assert place == device
        assert torch.equal(one.isinf(), other.isinf())
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4, equal_nan=True)
    if (device, statistic) != ("mps", "sample"):  # sums in float64, which are on the CPU then
        assert waits == {}


@pytest.mark.parametrize("statistic", ["lse", "entropy", "received", "summary", "pool"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_a_mask_may_be_on_another_device_than_the_matrix(statistic: str, where: str) -> None:
    expected = STATISTICS[statistic](AttentionMatrix(QUERY, KEY, mask=MASKS["scattered"]))
    with torch.no_grad(), Standins():
        mask = Causal() & Padding(keep=SCATTERED.to(where))
        found = STATISTICS[statistic](AttentionMatrix(QUERY.to("cuda"), KEY.to("cuda"), mask=mask))
        for one, other in zip(_tensors(found), _tensors(expected), strict=True):
            torch.testing.assert_close(one.cpu(), other, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_statistics_of_16_bit_tensors_are_computed_in_fp32() -> None:
    query, key = QUERY.bfloat16(), KEY.bfloat16()
    exact = AttentionMatrix(query.double(), key.double(), mask=Causal())
    expected = exact.entropy(), exact.received()
    with torch.no_grad(), Standins() as standins:
        matrix = AttentionMatrix(query.to("cuda"), key.to("cuda"), mask=Causal())
        for one, other in zip((matrix.entropy(), matrix.received()), expected, strict=True):
            torch.testing.assert_close(one.cpu().double(), other, atol=1e-5, rtol=1e-5)
        assert set(standins.attention) == {"_scaled_dot_product_efficient_attention"}


def _tensors(found: object) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [one for one in found if isinstance(one, Tensor)] if isinstance(found, tuple) else []
