"""Scores: how they combine, what they equal elsewhere, and what they refuse."""

from __future__ import annotations

import numpy
import pytest
import torch
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from attnscope.attention import ALiBi, Bias, Causal, ScoreMod, Sinks, Softcap, Temperature, attend
from attnscope.attention.scores import alibi_slopes, relative_buckets, split_score_mod
from attnscope.errors import ShapeError
from attnscope.matrix import AttentionMatrix
from tests.largest import LargestTensor

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("learned", [False, True])
def test_a_half_precision_bias_is_never_converted_whole(dtype: torch.dtype, learned: bool) -> None:
    n = 2048
    values = torch.randn(1, 1, n, n).to(dtype).requires_grad_(learned)
    query = torch.randn(1, 1, n, 4)
    with LargestTensor() as largest:
        attend(query, query, query, mask=Causal(), score_mod=Bias(values))
        if not learned:
            AttentionMatrix(query, query, mask=Causal(), score_mod=Bias(values)).entropy()
    assert largest.bytes <= n * n * dtype.itemsize  # the table itself; in fp32 it takes twice as much


def test_a_half_precision_bias_has_the_values_and_gradients_of_fp32() -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 1, 1, 40).bfloat16()  # one number for 40 queries and 2 heads: gradients are sums of 80
    query = torch.randn(2, 2, 40, 4)
    found = {}
    for backend in ("reference", "streaming"):
        for dtype in (torch.float32, torch.bfloat16):
            table = values.detach().to(dtype).clone().requires_grad_()
            output = attend(query, query, query, mask=Causal(), score_mod=Softcap(2.0) + Bias(table), backend=backend)
            output.square().sum().backward()
            found[backend, dtype] = output.detach(), table.grad
    expected, gradient = found["reference", torch.float32]
    for output, grad in found.values():
        torch.testing.assert_close(output, expected)
        assert grad is not None
        assert gradient is not None
        torch.testing.assert_close(grad, gradient.to(grad.dtype), atol=1e-5, rtol=torch.finfo(grad.dtype).eps)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_row_whose_bias_is_minus_infinity_is_a_row_without_keys(sinks: bool) -> None:
    values = torch.randn(6, 6)
    values[2] = -torch.inf
    score_mod = Bias(values) + Sinks(torch.tensor([0.3, -0.2])) if sinks else Bias(values)
    found = {
        backend: attend(QUERY, KEY, VALUE, mask=Causal(), score_mod=score_mod, backend=backend, return_lse=True)
        for backend in ("reference", "streaming")
    }
    for output, lse in found.values():
        assert not output[:, :, 2].any()
        assert (lse[:, :, 2] == -torch.inf).all()
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bias.t5(torch.zeros(1, 2), bidirectional=False), "at least 2 buckets"),
        (lambda: Bias.t5(torch.zeros(2, 2), bidirectional=True), "at least 4 buckets"),
        (lambda: Bias.t5(torch.zeros(32, 2), bidirectional=False, max_distance=16), "max_distance=16"),
        (lambda: Bias.t5(torch.zeros(32), bidirectional=False), r"\(buckets, heads\), got \(32,\)"),
        (lambda: attend(QUERY, KEY, VALUE, scale=float("nan")), "finite scale, got nan"),
        (lambda: attend(QUERY, KEY, VALUE, scale=float("inf")), "finite scale, got inf"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_slopes_may_be_a_list_and_a_number_of_heads_any_integer() -> None:
    assert ALiBi([0.5, 0.25]).slopes.tolist() == [0.5, 0.25]
    assert torch.equal(ALiBi(numpy.int64(2)).slopes, alibi_slopes(2))  # pyright: ignore[reportArgumentType]
