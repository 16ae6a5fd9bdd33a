"""Sampling: the distributions of transformers, and draws that follow them and can be repeated."""

from __future__ import annotations

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from attnscope.errors import UnsupportedError
from attnscope.models.sampling import GREEDY, Sampler, Sampling, probabilities


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=5),
        Sampling(top_k=1000),
        Sampling(top_p=0.6),
        Sampling(top_p=1.0),
        Sampling(min_p=0.1),
        Sampling(temperature=1.5, top_k=20, top_p=0.8, min_p=0.05),
    ],
)
def test_distributions_are_those_of_transformers(sampling: Sampling) -> None:
    logits = torch.randn(4, 200) * 3
    warpers = [TemperatureLogitsWarper(float(sampling.temperature))]
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p else []
    warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    wanted = logits
    for warper in warpers:
        wanted = warper(torch.zeros(4, 1, dtype=torch.long), wanted)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(probabilities(logits, sampling), wanted.softmax(-1))


def test_top_k_leaves_exactly_k_also_among_equals() -> None:
    assert (probabilities(torch.zeros(1, 50), Sampling(top_k=7)) > 0).sum() == 7


def test_top_p_always_leaves_one_token() -> None:
    assert probabilities(torch.tensor([[9.0, 0.0]]), Sampling(top_p=1e-9)).tolist() == [[1.0, 0.0]]


def test_draws_follow_the_distribution() -> None:
    logits, sampling = torch.randn(1, 12), Sampling(temperature=0.8, top_k=9)
    draws = Sampler(sampling, rows=20_000).choose(logits.expand(20_000, -1))
    shares = draws.bincount(minlength=12) / 20_000
    wanted = probabilities(logits, sampling)[0]
    assert (shares[wanted == 0] == 0).all()
    # Four standard deviations of a share of 20,000 draws.
    assert ((shares - wanted).abs() <= 4 * (wanted * (1 - wanted) / 20_000).sqrt() + 1e-9).all()


def test_a_seed_reproduces_and_another_differs() -> None:
    logits = torch.randn(3, 1000)

    def draw(seed: int) -> list[list[int]]:
        sampler = Sampler(Sampling(seed=seed), rows=3)
        return [sampler.choose(logits).tolist() for _ in range(10)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(4)


def test_a_row_draws_the_same_whatever_rows_stand_beside_it() -> None:
    logits = torch.randn(3, 1000)
    alone, together = Sampler(Sampling(seed=7), rows=1), Sampler(Sampling(seed=7), rows=3)
    assert [alone.choose(logits[:1])[0] for _ in range(20)] == [together.choose(logits)[0] for _ in range(20)]


def test_rows_of_neighbouring_seeds_are_not_the_same() -> None:
    logits = torch.randn(1, 1000).expand(8, -1)
    first, second = (Sampler(Sampling(seed=seed), rows=8).choose(logits) for seed in (0, 1))
    assert not set(first.tolist()) >= set(second[:-1].tolist())


@pytest.mark.parametrize("temperature", [1e-40, 1e-3])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    logits = 10 * torch.tensor([[1.0, 3.0, 2.0]])
    assert Sampler(Sampling(temperature=temperature), rows=1).choose(logits).tolist() == [1]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("wrong", [torch.nan, -torch.inf])
def test_scores_that_are_no_numbers_are_refused(sampling: Sampling, wrong: float) -> None:
    with pytest.raises(UnsupportedError, match="NaN or infinite"):
        Sampler(sampling, rows=2).choose(torch.stack([torch.zeros(5), torch.full((5,), wrong)]))


def test_greedy_takes_the_likeliest() -> None:
    logits = torch.randn(5, 100)
    assert torch.equal(Sampler(GREEDY, rows=5).choose(logits), logits.argmax(-1))
    assert torch.equal(probabilities(logits, GREEDY).argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be .*-1.0"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"min_p": 1.5}, "min_p must be above 0 and at most 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)  # pyright: ignore[reportArgumentType]
