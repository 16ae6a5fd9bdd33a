"""Every number that the Triton kernels compute, against dense fp64 code, in Triton's interpreter on the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.attention.triton.cases import ALL_TRIPLES, FACTORS, THINNED, Case, covering_array
from tests.attention.triton.interpreter import Memory, OutsideError

ROOT = Path(__file__).resolve().parents[3]
Judge = Callable[[Case], list[str]]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Runs a case in a process with the interpreter, and returns what is wrong with its results."""
    command = [sys.executable, "-m", "tests.attention.triton.interpreter"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout, process.stdin

        def run(case: Case) -> list[str]:
            sink.write(f"{case}\n")
            sink.flush()
            return json.loads(source.readline())

        yield run
        sink.close()
    assert process.returncode == 0


@pytest.mark.parametrize("case", THINNED, ids=str)
def test_every_statistic_is_as_exact_as_dense_fp32_code(judge: Judge, case: Case) -> None:
    assert judge(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL_TRIPLES, ids=str)
def test_every_statistic_is_as_exact_as_dense_fp32_code_on_all_triples(judge: Judge, case: Case) -> None:
    assert judge(case) == []


def test_a_covering_array_contains_every_combination() -> None:
    factors = {name: FACTORS[name] for name in FACTORS if name != "mask"} | {"mask": ["full", "causal"]}
    for strength in (1, 2):
        cases = [case._asdict() for case in covering_array(factors, strength)]
        for names in combinations(factors, strength):
            for values in product(*(factors[name] for name in names)):
                assert any(all(case[n] == v for n, v in zip(names, values, strict=True)) for case in cases)


def test_reads_outside_of_tensors_are_noticed() -> None:
    inside = torch.zeros(4, 6)[:, :3]
    memory = Memory([inside])
    addresses = inside.data_ptr() + 4 * np.array([0, 2, 6, 20])
    memory.check("read", addresses, np.ones(4, bool))
    memory.check("read", np.append(addresses, 1), np.array([1, 1, 1, 1, 0], bool))
    for outside in (-1, 3, 21, 24):
        with pytest.raises(OutsideError, match="read of 1 addresses outside of all tensors"):
            memory.check("read", np.array([inside.data_ptr() + 4 * outside]), np.ones(1, bool))
