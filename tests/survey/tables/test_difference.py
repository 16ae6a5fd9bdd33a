"""What changed between two surveys: known changes are found, and where there are none, none is."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.errors import SettingError
from attnscope.survey import Difference, compare, open_survey
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.tables.difference import Samples, compare_samples, effect_size, student_quantile
from tests.survey.synthetic_surveys import ABOUT, clustered, write_survey

FAMILIES, COMPARISONS = 400, 300
FALSE_ALARMS = 0.05
ROUNDING = 1e-9
MEANS = np.array([0.1, 0.3, 0.6, 0.9])
LAYERS = ("blocks.0.attention", "blocks.1.attention")


def samples(chance: np.random.Generator, passages: int, kind: str, shift: float = 0.0) -> Samples:
    """Means of many queries in passages of all lengths; queries of a passage are alike, passages are independent."""
    counts = chance.integers(2, 512, passages)
    shape = COMPARISONS, passages
    if kind == "rare":
        levels = (chance.random(shape) < 0.05).astype(float)
    elif kind == "skewed":
        levels = chance.beta(0.1, 0.9, shape)
    else:
        levels = chance.beta(2.0, 3.0, shape)
    totals = (levels + shift + chance.normal(0.0, 0.3, shape) / np.sqrt(counts)) * counts
    means = totals.sum(1) / counts.sum()
    residuals = totals - means[:, None] * counts
    errors = np.sqrt((residuals**2).sum(1) * passages / (passages - 1)) / counts.sum()
    return Samples(means, errors, np.full(COMPARISONS, passages))


@pytest.mark.parametrize(
    ("kind", "passages"),
    [("even", (20, 20)), ("even", (100, 100)), ("even", (30, 240)), ("skewed", (30, 240)), ("rare", (30, 240))],
)
def test_without_a_true_change_at_most_one_family_in_twenty_shows_any(kind: str, passages: tuple[int, int]) -> None:
    chance = np.random.default_rng(1)
    alarms = 0
    for _ in range(FAMILIES):
        before, after = (samples(chance, some, kind) for some in passages)
        alarms += bool(compare_samples(before, after).changed.any())
    assert alarms <= FALSE_ALARMS * FAMILIES, f"{alarms} of {FAMILIES} families"


def test_errors_of_queries_instead_of_passages_would_break_that_promise() -> None:
    chance = np.random.default_rng(1)
    alarms = 0
    for _ in range(20):
        before, after = (samples(chance, 100, "even") for _ in range(2))
        naive = [some._replace(error=some.error / np.sqrt(257)) for some in (before, after)]
        alarms += bool(compare_samples(*naive).changed.any())
    assert alarms == 20


def test_known_changes_are_found_and_their_intervals_hold_them() -> None:
    chance = np.random.default_rng(2)
    shift, missed, outside = 0.15, 0, 0
    for _ in range(20):
        found = compare_samples(samples(chance, 400, "even"), samples(chance, 400, "even", shift))
        missed += int((~found.changed).sum())
        outside += bool(((found.low > shift) | (found.high < shift)).any())
    assert missed < 0.01 * 20 * COMPARISONS
    assert outside <= 3  # of 20 families; 1 is expected at most


def exact_tail(value: float, degrees: int) -> float:
    """The finite sum for an even number of degrees of freedom, Abramowitz and Stegun 26.7.4."""
    angle = math.atan(value / math.sqrt(degrees))
    term, total = 1.0, 1.0
    for step in range(2, degrees, 2):
        term *= (step - 1) / step * math.cos(angle) ** 2
        total += term
    return (1.0 - math.sin(angle) * total) / 2


@pytest.mark.parametrize("degrees", [20, 50, 1000])
@pytest.mark.parametrize("tail", [0.025, 1e-4, 1e-6])
def test_quantiles_of_student_are_those_of_the_exact_sum(degrees: int, tail: float) -> None:
    quantile = float(student_quantile(tail, np.array([degrees]))[0])
    assert exact_tail(quantile, degrees) == pytest.approx(tail, rel=0.02)


def test_too_few_passages_tell_nothing() -> None:
    few = Samples(np.array([0.1, 0.1]), np.array([0.001, np.nan]), np.array([19, 100]))
    found = compare_samples(few, few._replace(mean=np.array([0.9, 0.9]), error=np.array([0.001, 0.001])))
    assert not found.changed.any()
    assert np.isnan(found.low).all()
    np.testing.assert_allclose(found.change, 0.8)


def test_a_difference_in_rounding_is_no_change() -> None:
    exact = Samples(np.array([1.0]), np.array([0.0]), np.array([1000]))
    assert not compare_samples(exact, exact._replace(mean=np.array([1.0 - 6e-8]))).changed.any()
    assert compare_samples(exact, exact._replace(mean=np.array([0.99]))).changed.all()


def test_sizes_are_from_minus_one_to_one_and_half_is_half_or_twice() -> None:
    one, two = np.array(10.0), np.array(20.0)
    for name, (before, after) in {
        "reach": (one, two),
        "effective_keys": (one, two),
        "entropy": (np.log(one), np.log(two)),
    }.items():
        assert float(effect_size(name, before, after)) == pytest.approx(0.5)
        assert float(effect_size(name, after, before)) == pytest.approx(-0.5)
    assert float(effect_size("sink", np.array(0.9), np.array(0.2))) == pytest.approx(-0.7)
    assert float(effect_size("reach", np.array(0.001), np.array(0.01))) < 0.01, "hundredths of a token"
    assert all(abs(float(effect_size(name, np.array(0.0), np.array(1.0)))) <= 1.0 for name in STATISTICS)


def survey_of(folder: Path, means: np.ndarray, seed: int, passages: int = 60, **options: Any) -> Path:
    chance = np.random.default_rng(seed)
    found = [{"sink": share, "reach": 100 * share, "local": 1 - share} for share in clustered(chance, passages, means)]
    return write_survey(folder, found, **options)


def difference(folder: Path, after: np.ndarray, **options: Any) -> Difference:
    return compare(
        open_survey(survey_of(folder / "a", MEANS, 1)), open_survey(survey_of(folder / "b", after, 2, **options))
    )


def test_from_folders_the_head_that_changed_is_named_and_no_other(tmp_path: Path) -> None:
    found = difference(tmp_path, np.array([0.1, 0.7, 0.6, 0.9]), digest="another corpus")
    assert found.changed_heads.heads_by_layer == {LAYERS[0]: [1]}
    assert found.num_comparisons == 12
    assert found.label_changes() == {("local", "sink"): 1}
    assert found.warning is None
    rows = list(found.rows())
    assert {(row.layer, row.head, row.statistic) for row in rows} == {
        (LAYERS[0], 1, name) for name in ("sink", "reach", "local")
    }
    assert rows[0].statistic == "reach", "more than twice as far counts for more than 0.4 of the weight"
    sink = next(row for row in rows if row.statistic == "sink")
    assert sink.low < 0.4 < sink.high
    assert sink.change == pytest.approx(sink.after - sink.before, abs=ROUNDING)
    assert sink.effect_size == pytest.approx(sink.change, abs=ROUNDING)
    assert [row.statistic for row in found.rows("local")] == ["local"]


def test_a_survey_does_not_differ_from_itself(tmp_path: Path) -> None:
    survey = open_survey(survey_of(tmp_path / "a", MEANS, 1))
    found = compare(survey, survey)
    assert list(found.rows()) == []
    assert not found.changes.change.any()
    assert len(list(found.rows(include_unchanged=True))) == 12


def test_csv_has_every_comparison_the_largest_first(tmp_path: Path) -> None:
    found, file = difference(tmp_path, np.array([0.1, 0.7, 0.6, 0.9])), io.StringIO()
    found.to_csv(file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert len(rows) == 12
    effect_sizes = [abs(float(row["effect_size"])) for row in rows]
    assert effect_sizes == sorted(effect_sizes, reverse=True)
    assert [row["changed"] for row in rows] == ["True"] * 3 + ["False"] * 9
    assert rows[0]["labels_after"] == "sink"


def test_other_heads_are_refused_and_other_causes_named(tmp_path: Path) -> None:
    survey = open_survey(survey_of(tmp_path / "a", MEANS, 1))
    other = open_survey(survey_of(tmp_path / "other", MEANS, 1, layers=("blocks.0.attention", "blocks.2.attention")))
    with pytest.raises(SettingError, match=r"head 0 of blocks.1.attention"):
        compare(survey, other)
    model = ABOUT | {"hash": "sha256:another"}
    both = open_survey(survey_of(tmp_path / "both", MEANS, 1, about=model, digest="another", max_length=None))
    warning = str(compare(survey, both).warning)
    assert "both the model and the corpus differ" in warning
    assert "512 tokens and whole documents" in warning
    checkpoint = open_survey(survey_of(tmp_path / "checkpoint", MEANS, 1, about=model))
    assert compare(survey, checkpoint).warning is None


@pytest.mark.parametrize("documents", [1, 2, 19])
def test_from_few_documents_nothing_is_concluded(tmp_path: Path, documents: int) -> None:
    found = difference(tmp_path, np.array([0.1, 0.7, 0.6, 0.9]), documents=documents)
    assert f"only {documents} document" in str(found.inconclusive)
    assert "at least 20 documents" in str(found.inconclusive)
    assert (found.num_comparisons, found.num_unknown) == (0, 12)
    assert len(found.changed_heads) == 0
    assert list(found.rows()) == []
    assert not found.label_changes()
    everything = list(found.rows(include_unchanged=True))
    assert len(everything) == 12
    assert all(math.isnan(row.low) and math.isnan(row.high) and not row.changed for row in everything)
    assert everything[0].change > 0.3, "the means are still shown"


def test_from_20_documents_a_large_change_is_concluded(tmp_path: Path) -> None:
    found = difference(tmp_path, np.array([0.1, 0.7, 0.6, 0.9]), documents=20)
    assert found.inconclusive is None
    assert found.changed_heads.heads_by_layer == {LAYERS[0]: [1]}


def test_from_few_passages_nothing_is_concluded(tmp_path: Path) -> None:
    found = difference(tmp_path, MEANS, passages=19, documents=30)
    assert "in 20 passages of both surveys" in str(found.inconclusive)


def test_a_statistic_that_only_one_has_is_refused(tmp_path: Path) -> None:
    found = difference(tmp_path, MEANS)
    with pytest.raises(SettingError, match="'entropy' is not in both surveys"):
        next(found.rows("entropy"))
