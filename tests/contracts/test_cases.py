"""The cases cover all pairs of values, and their plain formulas are those of the library's objects."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from attnscope.attention import attend
from attnscope.contracts.cases import DTYPES, FACTORS, SCORES, Case, covering_array, covering_cases, supported_dtypes
from attnscope.contracts.dense import to_double

CASES = covering_cases(DTYPES)


@pytest.mark.parametrize("pair", list(combinations(["dtype", *FACTORS], 2)), ids=" and ".join)
def test_all_pairs_of_values_occur(pair: tuple[str, str]) -> None:
    factors = {"dtype": DTYPES, **FACTORS}
    occurring = {tuple(getattr(case, name) for name in pair) for case in CASES}
    assert occurring == set(product(*(factors[name] for name in pair)))


def test_a_covering_array_is_smaller_than_all_combinations() -> None:
    assert len(CASES) < 100
    assert len(covering_array({"a": range(3), "b": range(3), "c": range(3)}, strength=3)) == 27


def test_the_cases_are_the_same_every_time() -> None:
    assert covering_cases(DTYPES) == CASES
    one, other = CASES[0].make_leaves(), CASES[0].make_leaves()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_devices_without_float64_get_no_case_of_it() -> None:
    assert torch.float64 not in supported_dtypes(torch.device("mps"))
    assert supported_dtypes(torch.device("cpu")) == DTYPES


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == torch.float64], ids=str)
def test_dense_code_is_the_reference_backend(case: Case) -> None:
    leaves = to_double(case.make_leaves())
    dense = case.run_dense(leaves)
    output, lse = attend(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        mask=case.make_mask(),
        score_mod=SCORES[case.score].make(leaves),
        backend="reference",
        return_lse=True,
    )
    torch.testing.assert_close(dense.output, output, rtol=0, atol=1e-12)
    torch.testing.assert_close(dense.lse, lse, rtol=0, atol=1e-12)
