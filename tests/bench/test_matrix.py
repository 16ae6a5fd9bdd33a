"""What AttentionMatrix must cost, at a reduced size: `scripts/measure matrix` runs the full one."""

import pytest
import torch.nn.functional as F

from attnscope.bench.matrix import operations, random_head, read, reductions
from attnscope.bench.memory import peak_extra_bytes, with_peak_bytes
from tests.bench.processor import needs_bfloat16
from tests.bench.test_attention import kept

pytestmark = pytest.mark.alone

LENGTH = 8192


@pytest.mark.timed
@pytest.mark.parametrize("name", [name for name, (_, bound) in operations(16).items() if bound is not None])
def test_an_operation_keeps_its_bound(name: str) -> None:
    query, key = random_head(LENGTH)
    call, bound = operations(LENGTH)[name]
    contestants = {"torch": lambda: F.scaled_dot_product_attention(query, key, key, is_causal=True), "ours": call}
    assert bound is not None
    assert kept(contestants, lambda best: best["ours"] <= bound * best["torch"], rounds=2)


@pytest.mark.parametrize(
    ("length", "most_bytes"), [(16_384, 250e6), pytest.param(32_768, 500e6, marks=pytest.mark.slow)]
)
def test_memory_of_reductions_is_bounded(length: int, most_bytes: float) -> None:
    assert peak_extra_bytes(reductions, length) < most_bytes


def test_reading_returns_the_seconds_of_each_part() -> None:
    assert all(spent > 0 for spent in read(600, 2).values())


@pytest.mark.timed
def test_two_hundred_thousand_tokens_can_be_read_at_once() -> None:
    """At a fifth of the full length, a tile and a row take a fifth of their bounds, and an overview little memory."""
    spent, peak = with_peak_bytes(read, 200_000, 20)
    assert spent["tile, 95th percentile"] < 1.5 / 5
    assert spent["one full row"] < 0.3 / 5
    assert peak < 1e9


@pytest.mark.timed
@needs_bfloat16
def test_an_overview_of_two_hundred_thousand_tokens_takes_a_fifth_of_its_bound() -> None:
    assert read(200_000, 1)["sampled 512 x 512 overview"] < 10 / 5


@pytest.mark.timed
def test_the_dense_way_costs_more() -> None:
    calls = operations(LENGTH)
    contestants = {"dense": calls["entropy of a dense matrix"][0], "ours": calls["entropy, with lse"][0]}
    assert kept(contestants, lambda best: best["dense"] > 4 * best["ours"], rounds=1)
