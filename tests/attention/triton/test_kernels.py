"""Every number that the Triton kernels compute, against dense fp64 code, in Triton's interpreter on the CPU."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch

from tests.attention.triton.cases import (
    ALL_TRIPLES,
    FACTORS,
    FAR_APART,
    FOR_SEEDED_BUGS,
    LATER_MAXIMA,
    ONE_KEY,
    SOFTCAP,
    THINNED,
    TWO_TILES,
    WITH_SINKS,
    Case,
    covering_array,
)
from tests.attention.triton.interpreter import Answer, Memory, OutsideError, Request
from tests.mutations.seeded_bugs import TRITON

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "src" / "attnscope"


class Judge(Protocol):
    """Runs a case and returns what is wrong with its results."""

    def __call__(self, case: Case, folder: Path | None = None) -> list[str]: ...


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Runs cases in a process with the interpreter."""
    command = [sys.executable, "-m", "tests.attention.triton.interpreter"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout, process.stdin

        def run(case: Case, folder: Path | None = None) -> list[str]:
            request: Request = {"case": list(case), "folder": None if folder is None else str(folder)}
            sink.write(json.dumps(request) + "\n")
            sink.flush()
            answer: Answer = json.loads(source.readline())
            assert answer["failure"] is None, answer["failure"]
            return answer["complaints"]

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


CAUGHT_BY = dict.fromkeys(TRITON, LATER_MAXIMA) | {
    "sink missing from the entropy": WITH_SINKS,
    "the largest logit of the last tile": WITH_SINKS,
    "maximum of a bin from its last tile": TWO_TILES,
    "local weight of one side": WITH_SINKS,
    "an empty bin takes its neighbour's sum": WITH_SINKS,
    "offsets of 32 bits": FAR_APART,
    "softcap far too early": SOFTCAP,
    "weights near the query by another product": ONE_KEY,
}


def test_a_copy_of_the_kernels_without_a_bug_passes(judge: Judge, tmp_path: Path) -> None:
    shutil.copytree(LIBRARY / "attention" / "triton", tmp_path / "triton")
    assert judge(ONE_KEY, tmp_path / "triton") == []
    assert set(CAUGHT_BY.values()) == set(FOR_SEEDED_BUGS) <= set(THINNED)


@pytest.mark.parametrize("name", TRITON)
def test_a_seeded_bug_is_caught_by_one_case(judge: Judge, name: str, tmp_path: Path) -> None:
    bug, folder = TRITON[name], tmp_path / "triton"
    shutil.copytree(LIBRARY / "attention" / "triton", folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / Path(bug.file).name
    path.write_text(path.read_text(encoding="utf-8").replace(bug.right, bug.wrong), encoding="utf-8")
    assert judge(CAUGHT_BY[name], folder) != []


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
