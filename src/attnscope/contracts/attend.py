"""Contracts of `attend` with its default backend: output and lse, and all gradients, against dense fp64 code."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnscope.attention import attend
from attnscope.contracts.cases import DTYPES, SCORES, Case, covering_cases, dtype_name, supported_dtypes
from attnscope.contracts.contract import Check, Contract
from attnscope.contracts.dense import to_double, with_gradients
from attnscope.contracts.tolerances import Deviation, compare_attention

DRAWS = 6
"""How often cases with parameters are drawn: the gradient of four sinks is a small sample of errors."""


def checks(dtype: torch.dtype, gradients: bool, device: torch.device) -> Iterator[Check]:
    """Yield the checks of one dtype on one device."""
    if dtype not in supported_dtypes(device):
        return
    for case in covering_cases(supported_dtypes(device)):
        if case.dtype == dtype:
            yield Check(str(case), partial(compare_gradients if gradients else compare_output, case, device))


def compare_output(case: Case, device: torch.device) -> list[Deviation]:
    """Compare output and lse, computed without gradients."""
    leaves = case.make_leaves()
    with torch.no_grad():
        output, lse = run_attend(case, {name: leaf.to(device) for name, leaf in leaves.items()})
        got = to_double({"output": output, "lse": lse})
        truth, plain = (
            to_double({"output": found.output, "lse": found.lse})
            for found in (case.run_dense(to_double(leaves)), case.run_dense(leaves))
        )
    return compare_attention(got, plain, truth, case.dtype)


def compare_gradients(case: Case, device: torch.device) -> list[Deviation]:
    """Compare output, lse and the gradients of query, key, value and parameters."""
    draws = [_draw(case, device, seed) for seed in range(DRAWS if SCORES[case.score].parameters else 1)]
    got, plain, truth = (
        {name: torch.stack([draw[at][name] for draw in draws]) for name in draws[0][at]} for at in range(3)
    )
    return compare_attention(got, plain, truth, case.dtype)


def _draw(case: Case, device: torch.device, seed: int) -> tuple[dict[str, Tensor], ...]:
    """Results of `attend`, of dense code in the dtype of the case, and of dense code in fp64."""
    generator = torch.Generator().manual_seed(seed + 1000)
    rows = case.sizes[:3]
    above = torch.randn(*rows, case.dim, generator=generator).to(case.dtype), torch.randn(*rows, generator=generator)

    def leaves(place: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: leaf.to(place, dtype).requires_grad_() for name, leaf in case.make_leaves(seed).items()}

    def dense(dtype: torch.dtype) -> dict[str, Tensor]:
        given = leaves(torch.device("cpu"), dtype)
        found = case.run_dense(given)
        return with_gradients(found.output, found.lse, given, *above)

    given = leaves(device, case.dtype)
    got = with_gradients(*run_attend(case, given), given, *above)
    return got, dense(case.dtype), dense(torch.float64)


def run_attend(case: Case, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return output and lse by the default backend."""
    score = SCORES[case.score].make(leaves)
    query, key, value = (leaves[name] for name in ("query", "key", "value"))
    return attend(query, key, value, mask=case.make_mask(), score_mod=score, return_lse=True)


CONTRACTS = tuple(
    Contract(f"{name}, {dtype_name(dtype)}", partial(checks, dtype, gradients))
    for name, gradients in (("output of attend", False), ("gradients of attend", True))
    for dtype in DTYPES
)
