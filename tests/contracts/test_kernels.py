"""The contract of the Triton kernels holds in Triton's interpreter, and finds a result that is wrong."""

import json
import os
import subprocess
import sys

import pytest
import torch

from attnscope.contracts import kernels
from tests.contracts.interpreted_kernels import CASES

pytest.importorskip("triton")


def broken_in_interpreter(wrong: str = "") -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tests.contracts.interpreted_kernels", wrong]
    result = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)


def test_the_kernels_hold_their_contract_in_the_interpreter() -> None:
    assert broken_in_interpreter() == {str(case): [] for case in CASES}


def test_a_kernel_that_is_wrong_in_the_fifth_digit_breaks_it() -> None:
    found = broken_in_interpreter("received")
    assert all(lines for lines in found.values())
    assert {line.partition(":")[0] for lines in found.values() for line in lines} == {"received"}


def test_the_cases_have_several_masks_and_scores() -> None:
    assert len({case.mask for case in CASES}) >= 3
    assert len({case.score for case in CASES}) >= 3


def test_the_contract_applies_to_devices_with_triton_only() -> None:
    assert list(kernels.checks(torch.device("cpu"))) == []
    assert list(kernels.checks(torch.device("mps"))) == []
    assert len(list(kernels.checks(torch.device("cuda", 0)))) > 20
