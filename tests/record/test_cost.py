"""What recording may cost, on trained weights and prose, at full size; `scripts/measure record` prints the figures."""

from __future__ import annotations

import time

import pytest
import torch

from sightline.bench.memory import peak_extra_bytes
from sightline.bench.record import BOUND_LENGTH, BOUNDS, MODES, keeps, prepared, run
from tests.models.smollm2 import FOLDER, transformers_model
from tests.record.test_statistics import text_of


@pytest.mark.timed
def test_a_pass_with_everything_recorded_costs_hardly_more_than_a_plain_one():
    """8,192 tokens, 270 heads: matrices, and all statistics with a picture each, which densely take 72 GB."""
    model, ids = transformers_model(torch.float32), text_of(BOUND_LENGTH)
    run(model, ids[:, :512], "statistics")
    best: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for _ in range(3):  # a slow spell of the machine may pass
        for mode in ("plain", "matrix", "statistics"):
            start = time.process_time()
            run(model, ids, mode)
            best[mode] = min(time.process_time() - start, best.get(mode, float("inf")))
        ratios = {mode: seconds / best["plain"] for mode, seconds in best.items()}
        if all(keeps(ratios[mode], 0.0, mode) for mode in ("matrix", "statistics")):
            return
    pytest.fail(f"times the plain pass: {ratios}, bounds {BOUNDS}")


@pytest.mark.timed
def test_a_pass_with_everything_recorded_holds_little_more_than_a_plain_one():
    ids = text_of(BOUND_LENGTH)
    rises = {mode: peak_extra_bytes(prepared, str(FOLDER), ids, mode) for mode in MODES}
    for mode in BOUNDS:
        assert keeps(0.0, rises[mode] - rises["plain"], mode), f"{mode}: {rises[mode] - rises['plain']:,} bytes above"
