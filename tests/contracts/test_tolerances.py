"""The rules let the error of dense code pass, and nothing that is several times larger, misplaced or NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnscope.contracts.tolerances import (
    Deviation,
    compare_attention,
    compare_fp32,
    find_broken,
    require_equal,
    tier_a,
    tier_b,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def results(rows: int = 40) -> dict[str, Tensor]:
    """Output and lse in fp64; the last row has no keys."""
    found = {"output": torch.randn(1, 2, rows, 8).double(), "lse": 3 + torch.rand(1, 2, rows).double()}
    found["output"][..., -1, :], found["lse"][..., -1] = 0.0, -math.inf
    return found


def rounded(truth: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: right.to(dtype).double() for name, right in truth.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_code_keeps_its_own_rule(dtype: torch.dtype) -> None:
    truth = results()
    plain = rounded(truth, dtype)
    assert find_broken(compare_attention(plain, plain, truth, dtype)) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["output", "lse"])
def test_a_larger_error_breaks_the_rule(name: str, dtype: torch.dtype) -> None:
    truth = results()
    plain = rounded(truth, dtype)
    got = {**plain, name: plain[name] + 40 * torch.finfo(dtype).eps + 1e-10}
    broken = find_broken(compare_attention(got, plain, truth, dtype))
    assert any(line.startswith(f"{name}: error ") for line in broken)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_in_wrong_places_break_the_rule(wrong: float, dtype: torch.dtype) -> None:
    truth = results()
    plain = rounded(truth, dtype)
    got = {name: tensor.clone() for name, tensor in plain.items()}
    got["output"][0, 0, 0, 0] = wrong
    assert "output: infinite or NaN in wrong places" in find_broken(compare_attention(got, plain, truth, dtype))


def test_a_row_that_should_be_minus_infinity_must_be() -> None:
    truth = results()
    plain = rounded(truth, torch.float32)
    got = {**plain, "lse": plain["lse"].masked_fill(plain["lse"] == -math.inf, 0.0)}
    assert find_broken(tier_a(got, plain, truth)) == ["lse: infinite or NaN in wrong places"]


def test_a_wrong_row_of_small_numbers_is_not_hidden_by_large_numbers_elsewhere() -> None:
    truth = results()
    truth["output"][0, 0, 3] *= 1e-4
    truth["output"][0, 0, 4] *= 1e4
    plain = rounded(truth, torch.float32)
    got = {name: tensor.clone() for name, tensor in plain.items()}
    got["output"][0, 0, 3] *= 1.01
    broken = find_broken(tier_a(got, plain, truth))
    assert len(broken) == 1
    assert broken[0].startswith("a row of output: error ")


def test_low_precision_may_not_be_worse_on_average() -> None:
    truth = results(400)
    plain = rounded(truth, torch.bfloat16)
    got = {**plain, "output": truth["output"] + 1.5 * (plain["output"] - truth["output"])}
    assert [line.partition(":")[0] for line in find_broken(tier_b(got, plain, truth, torch.bfloat16))] == [
        "mean of output"
    ]


def test_an_allowance_is_added_to_the_bound_of_one_result() -> None:
    truth = {"entropy": torch.ones(3).double(), "mass": torch.ones(3).double()}
    got = {name: right + 1e-4 for name, right in truth.items()}
    names = [line.partition(":")[0] for line in find_broken(compare_fp32(got, truth, truth, {"entropy": 1e-3}))]
    assert names == ["mass"]


def test_equal_means_the_same_bits() -> None:
    one = {"logits": torch.ones(3).double()}
    assert find_broken(require_equal(one, one)) == []
    assert find_broken(require_equal({"logits": one["logits"] + 1e-15}, one)) != []


def test_empty_results_have_nothing_to_compare() -> None:
    empty = {"output": torch.zeros(1, 2, 0, 8).double(), "lse": torch.zeros(1, 2, 0).double()}
    for dtype in DTYPES:
        assert compare_attention(empty, empty, empty, dtype) == []


@pytest.mark.parametrize(
    ("deviation", "share"),
    [
        (Deviation("a", 1.0, 2.0), 0.5),
        (Deviation("a", 0.0, 0.0), 0.0),
        (Deviation("a", 1.0, 0.0), math.inf),
        (Deviation("a", math.nan, 1.0), math.inf),
        (Deviation("a", math.inf, math.inf), math.inf),
    ],
)
def test_the_share_of_the_bound_finds_the_worst(deviation: Deviation, share: float) -> None:
    assert deviation.share == share
