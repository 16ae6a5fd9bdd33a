"""Runs the contract of the Triton kernels in Triton's interpreter, which must be chosen before they are imported.

The argument names a function of `launch` whose result is made wrong, or is empty. Out: what is broken, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from attnscope.contracts import kernels
from attnscope.contracts.cases import covering_cases
from attnscope.contracts.tolerances import find_broken
from tests.attention.triton.interpreter import patch_interpreter
from tests.attention.triton.judge import CONFIG

CPU = torch.device("cpu")
CASES = [
    case
    for case in covering_cases(kernels.DTYPES)
    if case.dim <= 80 and kernels.prepare(case, CPU) is not None  # the interpreter is slow
][:6]


def main(wrong: str) -> None:
    """Print what is broken in each case."""
    torch.set_num_threads(1)
    patch_interpreter()
    if wrong:
        from attnscope.attention.triton import launch

        right: Any = getattr(launch, wrong)
        setattr(launch, wrong, lambda *args: right(*args) * 1.0001)
    sys.stdout.write(json.dumps({str(case): find_broken(kernels.compare(case, CPU, CONFIG)) for case in CASES}))


if __name__ == "__main__":
    main(sys.argv[1])
