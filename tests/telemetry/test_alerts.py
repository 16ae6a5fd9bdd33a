"""Each rule fires where it should, once, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attnscope.telemetry.alerts import (
    COOL_DOWN,
    AlertLog,
    DeadHead,
    EntropyCollapse,
    GrowingLogit,
    History,
    LargeLogit,
    NotFinite,
    Rule,
)
from attnscope.telemetry.statistics import HeadStatistics, entropy_quantile

HEADS = [("first", 0), ("first", 1), ("second", 0)]


def statistics(**values: Any) -> HeadStatistics:
    """Statistics of three healthy heads, with some values replaced."""
    healthy = dict.fromkeys(HeadStatistics._fields, np.ones(3)) | {"collapsed": np.zeros(3), "sink_weight": np.zeros(3)}
    return HeadStatistics(**{**healthy, **{name: np.array(value, dtype=float) for name, value in values.items()}})


def alerts(rule: Rule, *steps: dict[str, Any], every: int = 50) -> list[tuple[int, str, int]]:
    """Step, layer and head of every alert of a rule in a series of steps."""
    history, log = History(64), AlertLog(HEADS, [rule])
    found = []
    for at, values in enumerate(steps):
        history.add(at * every, statistics(**values))
        found += [(alert.step, alert.layer, alert.head) for alert in log.check(history)]
    return found


def test_a_large_logit_is_reported_once_until_it_is_over() -> None:
    high, low = {"max_logit": [1, 150, 1]}, {"max_logit": [1, 50, 1]}
    first, again = (50, "first", 1), ((2 + COOL_DOWN) * 50, "first", 1)
    assert alerts(LargeLogit(), low, high, high, low, high) == [first]
    assert alerts(LargeLogit(), low, high, *[low] * (COOL_DOWN - 1), high) == [first]
    assert alerts(LargeLogit(), low, high, *[low] * COOL_DOWN, high) == [first, again]


def test_a_logit_that_doubles_is_reported_before_it_is_large() -> None:
    growing = [{"max_logit": [5, 25 * 2 ** (at / 6), 24 + at % 2]} for at in range(12)]
    assert alerts(GrowingLogit(within=500), *growing) == [(350, "first", 1)]
    assert alerts(GrowingLogit(within=200), *growing) == []


def test_small_logits_may_grow() -> None:
    assert alerts(GrowingLogit(), *[{"max_logit": [0.1 * 1.5**at, 1, 1]} for at in range(12)]) == []


def test_noise_is_no_trend() -> None:
    rng = np.random.default_rng(0)
    noise = [{"max_logit": 40 * np.exp(0.3 * rng.standard_normal(3))} for _ in range(64)]
    assert len(alerts(GrowingLogit(within=50), *noise)) == 0


def test_entropy_that_collapses_is_reported_and_sharp_heads_are_not() -> None:
    steps = [{"collapsed": [0.95, min(0.1 * at, 0.9), 0.2]} for at in range(12)]
    assert alerts(EntropyCollapse(), *steps) == [(250, "first", 1)]


def test_not_finite_is_reported_at_once() -> None:
    assert alerts(NotFinite(), {"max_logit": [1, 1, math.nan]}) == [(0, "second", 0)]


def test_a_head_on_the_first_key_for_long_is_dead() -> None:
    steps = [{"sink_weight": [0.999, 0.9, 0.999 if at != 5 else 0.5]} for at in range(16)]
    assert alerts(DeadHead(), *steps) == [(750, "first", 0)]


def test_an_alert_says_where() -> None:
    history, log = History(64), AlertLog(HEADS, [LargeLogit(10)])
    place = {"max_sequence": [0, 3, 0], "max_query": [0, 40, 0], "max_key": [0, 7, 0]}
    history.add(3, statistics(max_logit=[1, 20, 1], **place))
    (alert,) = log.check(history)
    assert (alert.sequence, alert.query, alert.key, alert.value) == (3, 40, 7, 20.0)
    assert alert.reason == "max logit 20.0 is above 10"


@pytest.mark.parametrize("quantile", [0.05, 0.5, 1.0])
def test_quantiles_of_counts_are_within_a_bin(quantile: float) -> None:
    entropies = np.random.default_rng(1).gamma(2.0, 1.0, 5000)
    counts = np.histogram(entropies, bins=160, range=(0, 16))[0][None].astype(float)
    assert abs(entropy_quantile(counts, quantile)[0] - np.quantile(entropies, quantile)) <= 0.1
