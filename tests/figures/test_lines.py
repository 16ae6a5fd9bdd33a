"""Curves hold the numbers they were given and carry their names, and no text meets another or leaves the figure."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from attnscope.errors import ShapeError
from attnscope.figures import lines
from tests.figures.drawn import assert_texts_stand_apart, notes

AXES: dict[str, Any] = {"xlabel": "tokens", "ylabel": "seconds"}


def curve(figure: Figure, name: str) -> np.ndarray:
    (found,) = (line for line in figure.axes[0].get_lines() if line.get_label() == name)
    return np.array(found.get_data(), dtype=float)


def ticks(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_xticklabels()]


def test_every_curve_is_drawn_and_has_its_name_at_its_last_point() -> None:
    figure = lines([1, 2, 4], {"dense": [1.0, 4.0, 16.0], "windowed": torch.tensor([1.0, 2.0, 4.0]).tolist()}, **AXES)
    np.testing.assert_array_equal(curve(figure, "dense"), [[1, 2, 4], [1, 4, 16]])
    np.testing.assert_array_equal(curve(figure, "windowed"), [[1, 2, 4], [1, 2, 4]])
    assert {text: note.xy for text, note in notes(figure.axes[0]).items()} == {"dense": (4, 16), "windowed": (4, 4)}
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("tokens", "seconds")


def test_nan_is_a_gap_and_a_curve_that_ends_early_is_named_where_it_ends() -> None:
    figure = lines([1, 2, 3, 4], {"a": [1.0, math.nan, 3.0, math.nan], "b": [math.nan] * 4}, **AXES)
    assert np.isnan(curve(figure, "a")[1]).tolist() == [False, True, False, True]
    assert {text: note.xy for text, note in notes(figure.axes[0]).items()} == {"a": (3, 3)}


def test_a_level_goes_across_is_named_and_is_seen_even_far_from_the_curves() -> None:
    figure = lines([1, 2], {"a": [0.4, 0.5]}, reference_lines={"printed: 3": 3.0, "below": -1.0}, **AXES)
    assert {text: note.xy[1] for text, note in notes(figure.axes[0]).items()} == {
        "a": 0.5,
        "printed: 3": 3,
        "below": -1,
    }
    assert curve(figure, "_printed: 3").tolist() == [[0, 1], [3, 3]]
    low, high = figure.axes[0].get_ylim()
    assert low < -1 < 3 < high


def test_only_what_is_asked_for_is_dashed() -> None:
    figure = lines([1, 2], {"measured": [1, 2], "computed": [1, 3]}, dashed=["computed"], **AXES)
    styles = {line.get_label(): line.get_linestyle() for line in figure.axes[0].get_lines()}
    assert styles == {"measured": "-", "computed": "--"}


def test_powers_of_two_have_their_own_ticks() -> None:
    assert ticks(lines([64, 256, 4096], {"a": [1, 2, 3]}, log_x=True, **AXES)) == ["64", "256", "4,096"]
    many = [2**k for k in range(20)]
    assert ticks(lines(many, {"a": many}, log_x=True, **AXES)) == ["1", "8", "64", "512", "4,096", "32,768", "262,144"]
    assert "1,000" in ticks(lines([10, 300, 3000], {"a": [1, 2, 3]}, log_x=True, **AXES))


@pytest.mark.parametrize("values", [[1e-9, 1.0], [0.11, 0.12], [2.0, 2.0], [3.0, 90.0], [1.0, 1e12]])
def test_a_logarithmic_height_has_ticks_at_any_range(values: list[float]) -> None:
    axes = lines([1, 2], {"a": values}, log_y=True, **AXES).axes[0]
    low, high = axes.get_ylim()
    assert low < min(values) <= max(values) < high
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_heights_start_at_zero_where_that_costs_little() -> None:
    assert lines([1, 2], {"a": [1.0, 9.0]}, **AXES).axes[0].get_ylim()[0] == 0
    assert lines([1, 2], {"a": [8.0, 9.0]}, **AXES).axes[0].get_ylim()[0] > 7
    assert lines([1, 2], {"a": [-1.0, 9.0]}, **AXES).axes[0].get_ylim()[0] < -1


SETTINGS: dict[str, dict[str, Any]] = {
    "crowded": {"curves": {f"curve {k}": [1.0, 1.0] for k in range(8)}},
    "levels among them": {
        "curves": {"a": [1.0, 2.0], "b": [2.0, 2.01]},
        "reference_lines": {"printed": 2.0, "even": 1.99},
    },
    "logarithmic": {"curves": {"a": [1e-7, 1e3], "b": [1e-9, 1e3]}, "log_y": True},
    "long names": {"curves": {"a curve whose name is a sentence, nearly": [1e6, 5e6]}},
    "a long title": {"curves": {"a": [0.0, 1.0]}, "title": "A title that says what was found in many words. " * 4},
    "signs": {"curves": {"$5 and $x_": [0.0, 1.0]}, "title": "costs $5 and $x_", "ylabel": "$y_"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_text_is_written_over_another_or_beyond_the_figure(setting: str) -> None:
    figure = lines([1, 1e6], **{**AXES, **SETTINGS[setting]})
    assert_texts_stand_apart(figure)


@pytest.mark.parametrize("form", ["png", "svg"])
def test_one_point_can_be_drawn_and_saved(form: str) -> None:
    saved = io.BytesIO()
    for log_x, log_y in itertools.product([False, True], repeat=2):
        lines([512], {"a": [2.0]}, log_x=log_x, log_y=log_y, **AXES).savefig(saved, format=form)
    assert len(saved.getvalue()) > 5000


@pytest.mark.parametrize(
    ("x", "curves", "options", "message"),
    [
        ([], {"a": []}, {}, "at least one x"),
        ([1, math.nan], {"a": [1, 2]}, {}, "all finite"),
        ([1, 2], {}, {}, "1 to 8 curves, got 0"),
        ([1, 2], {str(k): [1, 2] for k in range(9)}, {}, "1 to 8 curves, got 9"),
        ([1, 2], {"a": [1, 2, 3]}, {}, "2 numbers for 'a'"),
        ([1, 2], {"a": [1, 2]}, {"dashed": ["b"]}, r"dashed=\['b'\]; expected some of a"),
        ([1, 2], {"a": [1, 2]}, {"reference_lines": {"l": math.inf}}, "finite reference_lines"),
        ([0, 2], {"a": [1, 2]}, {"log_x": True}, "above 0 with log_x, got 0"),
        ([1, 2], {"a": [0, 2]}, {"log_y": True}, "above 0 with log_y, got 0; use NaN"),
        ([1, 2], {"a": [1, 2]}, {"log_y": True, "reference_lines": {"l": -1.0}}, "above 0 with log_y, got -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(x: list, curves: dict, options: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=f"lines: .*{message}"):
        lines(x, curves, **AXES, **options)
