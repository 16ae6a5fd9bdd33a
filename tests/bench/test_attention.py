"""What `attend` must cost, at a reduced size: `scripts/measure attention` runs the full one."""

from collections.abc import Callable, Mapping
from math import comb

import pytest
import torch

from attnscope.attention import Causal, Documents, Window, attend
from attnscope.bench.attention import SLACK, _pairs, forward_and_backward, read_tokens
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.timing import race

RACES = 17
"""The number of races that decide, fixed beforehand. A call that loses 70 % of races passes 4 % of the time."""


def kept(
    contestants: Mapping[str, Callable[[], object]], is_met: Callable[[dict[str, float]], bool], rounds: int
) -> bool:
    """Whether the best times of most of `RACES` races keep a bound.

    A core changes its speed for seconds at a time. Calls that take turns in one short race meet the same speed, more
    or less; best times of different races do not compare.
    """
    with torch.no_grad():
        return sum(is_met(race(contestants, rounds)) for _ in range(RACES)) > RACES // 2


def chance_to_pass(losing: float, races: int = RACES) -> float:
    """The probability of winning most of the races when each is lost with the probability `losing`."""
    return sum(
        comb(races, won) * (1 - losing) ** won * losing ** (races - won) for won in range(races // 2 + 1, races + 1)
    )


def test_a_call_that_loses_most_races_rarely_passes() -> None:
    assert RACES % 2
    assert chance_to_pass(0.7) < 0.05
    assert chance_to_pass(0.6) < 0.2
    assert chance_to_pass(0.3) > 0.95


@pytest.mark.parametrize(("won", "expected"), [(RACES // 2, False), (RACES // 2 + 1, True)])
def test_most_races_decide_and_none_is_run_again(won: int, expected: bool) -> None:
    results = iter([True] * won + [False] * (RACES - won))
    assert kept({"ours": lambda: None}, lambda best: next(results), rounds=1) is expected
    assert next(results, None) is None


@pytest.mark.timed
@pytest.mark.alone
@pytest.mark.parametrize("length", [512, 2048])
@pytest.mark.parametrize("mask", ["causal", "full", "causal, 2 key heads", "padded batch"])
def test_attend_costs_no_more_than_torch(mask: str, length: int) -> None:
    theirs, ours = _pairs(length)[mask]
    assert kept({"torch": theirs, "ours": ours}, lambda best: best["ours"] <= 1.05 * best["torch"] + SLACK, rounds=5)


@pytest.mark.timed
@pytest.mark.alone
def test_a_window_and_documents_cost_what_they_score() -> None:
    tensors = [torch.randn(1, 8, 16_384, 64) for _ in range(3)]
    documents = Causal() & Documents(torch.arange(16_384) // 1024)
    contestants = {
        "causal": lambda: attend(*tensors, mask=Causal()),
        "window": lambda: attend(*tensors, mask=Window(256)),
        "documents": lambda: attend(*tensors, mask=documents),
    }
    assert kept(
        contestants,
        lambda best: best["window"] <= best["causal"] / 10 and best["documents"] <= best["causal"] / 8,
        rounds=1,
    )


@pytest.mark.timed
@pytest.mark.alone
def test_streaming_stays_within_six_times_torch() -> None:
    theirs, _ = _pairs(2048)["causal"]
    query, key, value = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    ours = {"ours": lambda: attend(query, key, value, mask=Causal(), backend="streaming"), "torch": theirs}
    assert kept(ours, lambda best: best["ours"] <= 6 * best["torch"], rounds=2)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("length", "most_bytes"), [(16_384, 75e6), pytest.param(32_768, 150e6, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("engine", ["fused", "streaming"])
def test_memory_of_forward_and_backward_is_bounded(engine: str, length: int, most_bytes: float) -> None:
    assert peak_extra_bytes(forward_and_backward, length, engine) < most_bytes


@pytest.mark.alone
def test_recurrent_linear_attention_takes_constant_memory() -> None:
    short, long = (peak_extra_bytes(read_tokens, tokens) for tokens in (2_000, 20_000))
    assert long < short + 8e6  # a tensor of all tokens alone would take 15 MB
