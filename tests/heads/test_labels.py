"""Labels are given by exact thresholds on scores, by the probe's score before the text's, and never without a score."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from attnscope.errors import SettingError
from attnscope.heads import LABELS, SCORES, HeadTable, Label, assign_labels
from attnscope.heads.labels import MIN_STANDARD_ERRORS, MIXED, get_label
from attnscope.heads.retrieval import SCORES as NEEDLE_SCORES

NAMES = [label.name for label in LABELS]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "heads.md"


def labels_of(**scores: float) -> tuple[str, ...]:
    """The labels of one head that has these scores."""
    found = assign_labels(
        HeadTable(("a",), (0,), {name: torch.tensor([value], dtype=torch.float64) for name, value in scores.items()})
    )
    assert found.labels is not None
    return found.labels[0]


@pytest.mark.parametrize("label", LABELS, ids=NAMES)
def test_a_threshold_is_exact_at_its_border(label: Label) -> None:
    for score in label.scores:
        assert labels_of(**{score: label.threshold}) == (label.name,)
        assert labels_of(**{score: math.nextafter(label.threshold, 1.0)}) == (label.name,)
        assert labels_of(**{score: math.nextafter(label.threshold, 0.0)}) == (MIXED,)


@pytest.mark.parametrize("label", LABELS, ids=NAMES)
def test_a_score_that_is_not_a_number_earns_no_label(label: Label) -> None:
    for score in label.scores:
        assert labels_of(**{score: math.nan}) == (MIXED,)
        assert labels_of(**{score: 1.0, f"{score}_error": math.nan}) == (MIXED,)


def test_a_head_may_have_several_labels_the_most_telling_first() -> None:
    assert labels_of(sink=0.6, local=0.8, previous=0.7) == ("previous", "local", "sink")
    everything = {score: 1.0 for label in LABELS for score in label.scores}
    assert labels_of(**everything) == tuple(NAMES)


def test_a_head_that_earns_nothing_is_mixed() -> None:
    assert labels_of(sink=0.1, entropy=9.0, reach=100.0) == (MIXED,)
    assert labels_of() == (MIXED,)


def test_rows_are_labelled_each_by_its_own_scores_and_nothing_else_changes() -> None:
    table = HeadTable(("a", "a", "b"), (0, 1, 0), {"sink": torch.tensor([0.6, 0.1, math.nan])})
    found = assign_labels(table)
    assert found.labels == (("sink",), (MIXED,), (MIXED,))
    assert (found.layers, found.heads, found.columns) == (table.layers, table.heads, table.columns)
    assert table.labels is None
    assert assign_labels(assign_labels(table)).labels == found.labels


@pytest.mark.parametrize("name", ["induction", "duplicate"])
def test_the_score_on_the_probe_decides_before_that_on_the_text(name: str) -> None:
    assert labels_of(**{name: 0.9, f"{name}_probe": 0.1}) == (MIXED,)
    assert labels_of(**{name: 0.1, f"{name}_probe": 0.9}) == (name,)
    assert labels_of(**{name: 0.9, f"{name}_probe": math.nan}) == (MIXED,)
    assert labels_of(**{name: 0.9}) == (name,)


def test_five_standard_errors_are_asked_for_where_an_error_is_known() -> None:
    assert MIN_STANDARD_ERRORS == 5.0
    for score in ("agreement", "coreference", "sink"):
        error = 0.15
        assert labels_of(**{score: 5 * error, f"{score}_error": error}) == (score,)
        assert labels_of(**{score: math.nextafter(5 * error, 0.0), f"{score}_error": error}) == (MIXED,)
        assert labels_of(**{score: 1.0, f"{score}_error": 0.0}) == (score,)
        assert labels_of(**{score: 0.05, f"{score}_error": 0.0}) == (MIXED,), "a sure score may be too little"


def test_the_error_of_one_score_does_not_count_for_another() -> None:
    assert labels_of(agreement=0.5, coreference=0.5, coreference_error=0.2) == ("agreement",)


def test_a_label_is_found_by_its_name_and_an_unknown_one_is_told_those_there_are() -> None:
    assert [get_label(name) for name in NAMES] == list(LABELS)
    with pytest.raises(SettingError, match=r"unknown label 'inductive' \(did you mean 'induction'\?\)"):
        get_label("inductive")


def test_every_label_has_a_name_of_its_own_a_meaning_and_scores_that_exist() -> None:
    known = {*SCORES, *NEEDLE_SCORES, "induction_probe", "duplicate_probe", "agreement", "coreference"}
    assert len(set(NAMES)) == len(NAMES)
    assert MIXED not in NAMES
    for label in LABELS:
        assert set(label.scores) <= known
        assert 0 < label.threshold < 1
        assert label.meaning.count(". ") >= 1 or len(label.meaning) >= 100, label.name
        assert label.meaning.endswith("."), label.name


@pytest.mark.parametrize("label", LABELS, ids=NAMES)
def test_every_label_has_its_threshold_meaning_and_picture_in_the_documentation(label: Label) -> None:
    _, heading, after = DOCUMENT.read_text().partition(f"\n### {label.name}\n")
    assert heading, "a section of its own"
    section = " ".join(after.partition("\n#")[0].split())
    assert f"`{label.scores[0]}` at least {label.threshold:g}" in section
    assert label.meaning in section
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", after.partition("\n#")[0])
    assert pictures
    assert all((DOCUMENT.parent / picture).is_file() for picture in pictures)
