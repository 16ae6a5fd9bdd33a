"""No verdict depends on the random seed: labs were run with several, and the slow tests run them with one more."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attnscope.labs import NAMES, run
from attnscope.labs.replication import UNKNOWN, changed_verdicts, seed_spreads, summarize, verdicts_by_claim

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results/labs"
NEW_SEED = 7
DECIDING = [name for name in NAMES if json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["claims"]]


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def other_seeds(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / "seeds" / f"{name}.json").read_text(encoding="utf-8"))


def measurements(run: dict[str, Any]) -> list[tuple[str, str]]:
    return [(claim["claim"], one["name"]) for claim in run["claims"] for one in claim["measurements"]]


@pytest.mark.parametrize("name", DECIDING)
def test_all_seeds_reach_the_same_verdicts(name: str) -> None:
    again = f"run them again: .venv/bin/python scripts/make_labs.py --seeds 1 2 -- {name}"
    first, *others = result(name), *other_seeds(name)
    seeds = [run["seed"] for run in (first, *others)]
    assert seeds[0] == 0, again
    assert len(seeds) == len(set(seeds)) >= 2, again
    for other in others:
        assert measurements(other) == measurements(first), again
    assert changed_verdicts([first, *others]) == []
    assert all(math.isfinite(spread.mean.error) for spread in seed_spreads([first, *others]).values())


@pytest.mark.parametrize("name", DECIDING)
def test_measurements_of_a_claim_have_names_of_their_own(name: str) -> None:
    names = measurements(result(name))
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECIDING)
def test_another_seed_reaches_the_same_verdicts(name: str) -> None:
    found = json.loads(json.dumps(run(name, seed=NEW_SEED).to_json()))
    outside = [
        f"claim {claim['claim']}: {one['name']} is {one['value']}, expected {one['interval']}"
        for claim in found["claims"]
        for one in claim["measurements"]
        if not one["is_inside"]
    ]
    assert outside == []
    assert verdicts_by_claim(found) == verdicts_by_claim(result(name))


def a_run(verdict: str, value: Any, claim: str = "1a") -> dict[str, Any]:
    measured = [{"name": "share", "value": value, "interval": "at least 0"}]
    told = {"claim": claim, "verdict": verdict, "condition": "", "reason": "because", "measurements": measured}
    return {"seed": 3, "claims": [told], "tables": []}


def test_a_verdict_that_changes_or_is_missing_is_found() -> None:
    assert changed_verdicts([a_run("holds", 1.0), a_run("holds", 2.0)]) == []
    assert changed_verdicts([a_run("holds", 1.0), a_run("inconclusive", 2.0)]) == ["1a"]
    assert changed_verdicts([a_run("holds", 1.0), a_run("holds", 1.0, "2")]) == ["1a", "2"]


def test_the_standard_error_is_the_deviation_by_the_root_of_the_number_of_seeds() -> None:
    runs = [a_run("holds", value) for value in (1.0, 2.0, 3.0, 4.0)]
    (spread,) = seed_spreads(runs).values()
    assert spread.mean == pytest.approx((2.5, math.sqrt(5 / 3) / 2))
    assert spread.deviation == pytest.approx(math.sqrt(5 / 3))
    assert seed_spreads([a_run("holds", 4)] * 3) == {("1a", "share"): ((4.0, 0.0), 0.0)}
    for unknown in (runs[:1], [*runs, a_run("holds", "nan")], [*runs, a_run("holds", 1.0, "2")]):
        assert seed_spreads(unknown)["1a", "share"] is UNKNOWN


def test_a_summary_has_the_values_and_verdicts_alone() -> None:
    (claim,) = summarize(a_run("holds", 1.0))["claims"]
    assert claim == {
        "claim": "1a",
        "verdict": "holds",
        "condition": "",
        "measurements": [{"name": "share", "value": 1.0}],
    }
