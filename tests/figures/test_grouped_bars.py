"""Bars are as high as their numbers, which stand above them."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from matplotlib.figure import Figure

from attnscope.errors import ShapeError
from attnscope.figures import grouped_bars
from tests.figures.drawn import assert_texts_stand_apart, notes

GROUPS = {"shared": {"start": 2.5, "end": 1.25}, "separate": {"start": 2.25, "end": 0.125}}


def heights(figure: Figure) -> dict[str, list[float]]:
    """The heights of all bars by their name, in the order of the groups."""
    return {str(group.get_label()): [float(bar.get_height()) for bar in group] for group in figure.axes[0].containers}


def numbers(figure: Figure) -> dict[str, tuple[float, float]]:
    return {text: note.xy for text, note in notes(figure.axes[0]).items()}


def test_each_bar_has_its_height_its_number_and_a_place_of_its_own() -> None:
    figure = grouped_bars(GROUPS, ylabel="loss")
    assert heights(figure) == {"start": [2.5, 2.25], "end": [1.25, 0.125]}
    places = numbers(figure)
    assert {text: value for text, (_, value) in places.items()} == {
        "2.5": 2.5,
        "1.25": 1.25,
        "2.25": 2.25,
        "0.125": 0.125,
    }
    across = [places[text][0] for text in ("2.5", "1.25", "2.25", "0.125")]
    assert across == sorted(across)
    assert across[0] < 0 < across[1] < 0.5 < across[2] < 1 < across[3]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["shared", "separate"]


def test_bars_are_named_once_and_not_at_all_where_each_group_has_one() -> None:
    legend = grouped_bars(GROUPS, ylabel="loss").axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["start", "end"]
    assert grouped_bars({"a": {"loss": 1}, "b": {"loss": 2}}, ylabel="loss").axes[0].get_legend() is None


def test_the_order_of_names_is_that_of_the_first_group() -> None:
    swapped = {"shared": GROUPS["shared"], "separate": {"end": 0.125, "start": 2.25}}
    assert heights(grouped_bars(swapped, ylabel="loss")) == heights(grouped_bars(GROUPS, ylabel="loss"))


def test_nan_has_a_dash_and_no_bar() -> None:
    for log_y in (False, True):
        figure = grouped_bars({"a": {"x": math.nan, "y": 2.0}}, ylabel="loss", log_y=log_y)
        assert set(numbers(figure)) == {"–", "2"}
        assert heights(figure)["x"] == [0.0]


def test_bars_start_at_zero_and_go_below_it() -> None:
    axes = grouped_bars({"a": {"x": 8.0, "y": 9.0}}, ylabel="loss").axes[0]
    assert axes.get_ylim()[0] == 0
    figure = grouped_bars({"a": {"x": -1.0, "y": 2.0}}, ylabel="change")
    assert numbers(figure)["-1"][1] == -1
    low, high = figure.axes[0].get_ylim()
    assert low < -1
    assert high > 2
    assert grouped_bars({"a": {"x": -1.0}}, ylabel="change").axes[0].get_ylim()[1] == 0


def test_a_level_is_named_and_seen() -> None:
    figure = grouped_bars(GROUPS, ylabel="loss", reference_lines={"chance": 4.0})
    assert numbers(figure)["chance"][1] == 4
    assert figure.axes[0].get_ylim()[1] > 4


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"groups": GROUPS, "title": "a title"},
    "many": {"groups": {f"{2**k:,}": {"bytes": 4.0**k, "pairs": 3.0**k} for k in range(18)}, "log_y": True},
    "long names": {"groups": {f"a group with a long name {k}": {"x": 1e-8, "y": 123456.0} for k in range(4)}},
    "long bars": {"groups": {"a": {f"a bar with a long name {k}": 1.0 for k in range(6)}}, "title": "signs: $5 $x_"},
    "one": {"groups": {"$a_": {"x": 0.0}}, "reference_lines": {"a level that has a long name": 1.0}},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_text_is_written_over_another_or_beyond_the_figure(setting: str) -> None:
    figure = grouped_bars(ylabel="how many of them", **SETTINGS[setting])
    assert_texts_stand_apart(figure)
    figure.savefig(io.BytesIO(), format="svg")


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ({}, {}, "got 0 groups of 0"),
        ({"a": {}}, {}, "got 1 groups of 0"),
        ({"a": {str(k): 1.0 for k in range(7)}}, {}, "1 to 6 bars per group"),
        ({str(k): {"x": 1.0} for k in range(37)}, {}, "36 in all, got 37 groups of 1"),
        ({"a": {"x": 1.0}, "b": {"y": 1.0}}, {}, r"\['x'\] in 'b', got \['y'\]"),
        ({"a": {"x": math.inf}}, {}, "finite or NaN"),
        ({"a": {"x": 1.0}}, {"reference_lines": {"l": math.nan}}, "finite reference_lines"),
        ({"a": {"x": 0.0}}, {"log_y": True}, "above 0 with log_y, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(groups: dict, options: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=f"grouped_bars: .*{message}"):
        grouped_bars(groups, ylabel="loss", **options)
