"""Scores: how they combine, what they equal elsewhere, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from attnscope.attention import ALiBi, Bias, Causal, ScoreMod, Sinks, Softcap, Temperature, attend
from attnscope.attention.scores import alibi_slopes, relative_buckets, split_score_mod
from attnscope.errors import ShapeError

QUERY, KEY, VALUE = (torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "limit"), [(32, 128), (8, 20), (16, 1000)])
def test_buckets_are_those_of_t5(buckets: int, limit: int, bidirectional: bool) -> None:
    distance = torch.arange(-2 * limit, 2 * limit)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, limit)
    assert torch.equal(relative_buckets(distance, buckets, bidirectional, limit), theirs)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_slopes_of_a_power_of_two_are_those_of_mpt(heads: int) -> None:
    theirs = build_mpt_alibi_tensor(heads, 3)[:, 0, 1] - build_mpt_alibi_tensor(heads, 3)[:, 0, 0]
    torch.testing.assert_close(alibi_slopes(heads), theirs)


def test_slopes_of_other_numbers_take_every_second_one() -> None:
    torch.testing.assert_close(alibi_slopes(6), torch.cat([alibi_slopes(4), alibi_slopes(8)[[0, 2]]]))


def test_order_is_the_order_written() -> None:
    capped_first = attend(
        QUERY, KEY, VALUE, score_mod=Softcap(0.5) + Bias(torch.arange(6.0)[None]), backend="reference"
    )
    bias_first = attend(QUERY, KEY, VALUE, score_mod=Bias(torch.arange(6.0)[None]) + Softcap(0.5), backend="reference")
    assert not torch.allclose(capped_first, bias_first, atol=1e-2)


def test_sinks_come_last_wherever_they_are_written() -> None:
    sinks, cap = Sinks(torch.tensor([0.3, -0.2])), Softcap(0.5)
    first = attend(QUERY, KEY, VALUE, score_mod=sinks + cap + Temperature(0.1))
    last = attend(QUERY, KEY, VALUE, score_mod=cap + Temperature(0.1) + sinks)
    assert torch.equal(first, last)


def test_leading_temperatures_become_part_of_the_scale() -> None:
    plain = split_score_mod(Temperature(2.0) + Temperature(4.0) + Softcap(1.0) + Temperature(8.0))
    assert plain.factor == 1 / 8
    assert plain.steps == (Softcap(1.0), Temperature(8.0))
    assert split_score_mod(None).factor == 1.0


def test_sinks_only_take_mass_away() -> None:
    sinks = torch.tensor([1.0, -20.0])
    output, lse = attend(QUERY, KEY, torch.ones_like(VALUE), score_mod=Sinks(sinks), return_lse=True)
    _, without = attend(QUERY, KEY, VALUE, return_lse=True)
    torch.testing.assert_close(lse, torch.logaddexp(without, sinks[:, None]))
    torch.testing.assert_close(output[..., 0], torch.exp(without - lse))
    assert (output[:, 0] < 0.99).all()
    torch.testing.assert_close(output[:, 1], torch.ones_like(output[:, 1]))


def test_a_switched_off_sink_changes_nothing() -> None:
    off = Sinks(torch.full((2,), -torch.inf))
    output, lse = attend(QUERY, KEY, VALUE, mask=Causal(offset=-2), score_mod=off, return_lse=True)
    expected, expected_lse = attend(QUERY, KEY, VALUE, mask=Causal(offset=-2), return_lse=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (Softcap(50.0) + Sinks(torch.zeros(2)), "Softcap(cap=50.0) + Sinks(2 logits)"),
        (ALiBi(8) + Temperature(2.0), "ALiBi(8 slopes) + Temperature(value=2.0)"),
        (Bias(torch.zeros(2, 6, 6)), "Bias(2, 6, 6)"),
        (Bias.t5(torch.zeros(32, 2), bidirectional=True), "Bias.t5(32 buckets)"),
        (Bias.by_distance(torch.zeros(2, 11), first=-5), "Bias.by_distance(-5 to 5)"),
    ],
)
def test_scores_print_short(score: ScoreMod, text: str) -> None:
    assert str(score) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Softcap(0.0), r"Softcap.*positive.*got 0.0"),
        (lambda: Temperature(-1.0), r"Temperature.*positive.*got -1.0"),
        (lambda: ALiBi(0), r"ALiBi.*head.*got 0"),
        (lambda: Bias(torch.ones(3, 3) > 0), r"Bias.*torch.bool.*from_bool\(attend=...\)"),
        (lambda: Bias(torch.ones(3)), r"Bias.*\(batch, heads, queries, keys\), got \(3,\)"),
        (lambda: split_score_mod(Sinks(torch.ones(2)) + Sinks(torch.ones(2))), r"one Sinks, got 2"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (ALiBi(3), r"ALiBi.*slopes.*\(2,\).*got \(3,\)"),
        (Sinks(torch.zeros(2, 1)), r"Sinks.*logits.*\(2,\).*got \(2, 1\)"),
        (Bias(torch.zeros(3, 6, 6)), r"Bias.*\(1, 2, 6, 6\).*got \(3, 6, 6\)"),
        (Bias.t5(torch.zeros(8, 3), bidirectional=False), r"Bias.t5.*table \(buckets, 2\), got \(8, 3\)"),
        (Bias.by_distance(torch.zeros(3, 11), first=-5), r"Bias.by_distance.*\(2, distances\), got \(3, 11\)"),
        (Bias.by_distance(torch.zeros(2, 9), first=-4), r"Bias.by_distance.*distances from -5 to 5"),
    ],
)
def test_what_does_not_fit_the_attention_is_refused(score: ScoreMod, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attend(QUERY, KEY, VALUE, score_mod=score)


def test_scores_combine_with_scores_only() -> None:
    with pytest.raises(TypeError, match=r"got Tensor.*Bias\(tensor\)"):
        _ = Softcap(1.0) + torch.ones(2, 2)  # pyright: ignore[reportOperatorIssue]
