"""Runs a matrix on the simulated CUDA device with the Triton kernels themselves, in Triton's interpreter.

The interpreter must be chosen before the kernels are imported, so this is a process of its own. It prints a JSON list
of what is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.attention.triton.interpreter import patch_interpreter, poison_empty

TOLERANCE = 1e-5
EDGES = {"narrow": ([0, 20, 73], [0, 11, 15, 73]), "equal": ([8, 40, 73], [*range(1, 73, 4), 73])}


def find_errors(mask: str, score: str) -> list[str]:
    """What differs from dense fp64 code."""
    from attnscope import AttentionMatrix
    from attnscope.attention.triton import operators
    from tests.devices import cuda_operators
    from tests.devices.standin import Standins
    from tests.matrix import test_bins, test_summary
    from tests.matrix.test_matrix import SHAPES, Subject, every_operation

    subject = Subject(mask, score, SHAPES["square"], torch.bfloat16)
    dense, errors = subject.dense(), []

    def compare(name: str, got: Tensor, right: Tensor) -> None:
        error = (got.cpu().double() - right.double()).abs() / right.double().abs().clamp(min=1.0)
        if got.shape != right.shape or not error.max() < TOLERANCE:
            errors.append(f"{mask}, {score}, {name}: {error.max():.3g}")

    with torch.no_grad(), Standins() as standins, mock.patch.dict(cuda_operators.EMULATED, operators.RUN):
        query, key = subject.query.to("cuda"), subject.key.to("cuda")
        matrix = AttentionMatrix(query, key, mask=subject.mask, score_mod=subject.score)
        for name, (got, right) in every_operation(matrix, dense, subject.allowed).items():
            compare(name, got, right)
        for name, right in vars(test_summary.right(dense, subject.allowed)).items():
            compare(f"summary: {name}", getattr(matrix.summary(test_summary.ROWS, test_summary.COLUMNS), name), right)
        for name, edges in EDGES.items():
            right = test_bins.plain(dense, subject.allowed, *edges)
            found = matrix.bins(*edges, marginals=False)
            compare(f"{name} bins: sums", found.sums, right.sums)
            compare(f"{name} bins: max", found.max, right.max)
        ids = torch.arange(dense.shape[-1]) // 5 % 3
        matched = matrix.summary(1, 1, pairings=[(ids, ids)]).matched_weight[:, :, 0]
        compare("matched weight", matched, (dense * (ids[:, None] == ids)).sum(-1))
        keys = matrix.topk(1).keys.cpu()
        compare("top key", dense.gather(-1, keys.clamp(min=0)), dense.amax(-1, keepdim=True))
    missing = {name.partition("::")[2] for name in operators.RUN} - set(standins.kernels)
    return [*errors, *(f"{name} was not launched" for name in missing)]


def main() -> None:
    """Check the mask and the score that are given as arguments."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    patch_interpreter()
    poison_empty()
    sys.stdout.write(json.dumps(find_errors(*sys.argv[1:])))


if __name__ == "__main__":
    main()
