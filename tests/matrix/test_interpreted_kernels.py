"""A matrix on the simulated CUDA device by the Triton kernels themselves, interpreted, against dense fp64 code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "case",
    [
        "two-sided, softcap and sinks",
        pytest.param("causal, empty rows, plain", marks=pytest.mark.slow),
        pytest.param("documents, slopes", marks=pytest.mark.slow),
    ],
)
def test_statistics_by_interpreted_kernels_equal_dense_fp64(case: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.matrix.interpreted_kernels", *case.rsplit(", ", 1)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []
