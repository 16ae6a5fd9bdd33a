"""The spike of a run and its rival signal are found where they are, and a diverging rate grows late."""

from __future__ import annotations

import math

import pytest

from benchmarks.divergence import GROWTH, GROWTH_START, RATE, SMOOTHING, WARM_UP, Run, rate_at


def test_a_spike_is_found_when_the_mean_has_risen() -> None:
    falling = [5 - step / 50 for step in range(100)]
    assert Run(losses=falling).spike is None
    spike = Run(losses=[*falling, *[4.5] * 20]).spike
    assert spike is not None
    assert 100 < spike <= 100 + SMOOTHING
    assert Run(losses=[*falling, math.nan]).spike == 101


def test_a_large_gradient_is_found_at_its_step() -> None:
    assert Run(norms=[1.0] * 60).large_gradient is None
    assert Run(norms=[*[1.0] * 60, 11.0]).large_gradient == 61
    assert Run(norms=[*[1.0] * 60, math.nan]).large_gradient == 61


def test_the_first_alert_counts() -> None:
    assert Run().alert is None
    assert Run(alerts={"large logit": 40, "growing logit": 25}).alert == 25


def test_the_rate_grows_after_a_constant_time() -> None:
    assert rate_at(0, 600, GROWTH) == RATE / WARM_UP
    assert rate_at(GROWTH_START, 600, GROWTH) == RATE
    assert rate_at(600, 600, GROWTH) == pytest.approx(RATE * GROWTH)
    assert rate_at(599, 600, 1.0) == RATE
