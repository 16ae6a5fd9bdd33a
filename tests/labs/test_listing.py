"""What is listed without running is what a run would decide."""

from __future__ import annotations

import pytest

from attnscope.labs import CLAIMS, NAMES, run
from attnscope.labs.exercise import task
from attnscope.labs.exercises import EFFORT
from attnscope.labs.exercises import NAMES as EXERCISES
from attnscope.labs.listing import claims_in, exercises, experiments


def test_every_experiment_is_listed_in_order_with_its_title() -> None:
    listed = list(experiments())
    assert tuple(lab.name for lab in listed) == NAMES
    assert all(lab.title for lab in listed)


def test_every_claim_is_decided_by_exactly_one_experiment() -> None:
    decided = [claim for lab in experiments() for claim in lab.claims]
    assert sorted(decided) == sorted(CLAIMS)


def test_every_exercise_is_listed_with_its_title() -> None:
    listed = [(name, title) for name, title, *_ in exercises()]
    assert listed == [(name, task(name).partition("\n")[0].rstrip(".")) for name in EXERCISES]
    assert [(difficulty, minutes) for *_, difficulty, minutes in exercises()] == [one[1:] for one in EFFORT.values()]


def test_a_run_decides_what_is_listed() -> None:
    (listed,) = (lab for lab in experiments() if lab.name == "worked_examples")
    assert {decision.claim for decision in run("worked_examples").decisions} == set(listed.claims)


def test_claims_are_found_wherever_they_are_decided_and_listed_in_order() -> None:
    source = (
        "def first(lab):\n    lab.decide('38', HOLDS)\n    if True:\n        lab.decide('1a', HOLDS)\nlab.table('9')"
    )
    assert claims_in(source) == ("1a", "38")


def test_a_claim_that_does_not_stand_in_the_file_is_refused() -> None:
    for source in ("lab.decide(name, HOLDS)", "lab.decide('no claim', HOLDS)", "lab.decide('999', HOLDS)"):
        with pytest.raises(ValueError, match="literal string"):
            claims_in(source)
