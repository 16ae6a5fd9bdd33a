"""Results can be read on a terminal of any width and without colours, and are plain lines in a pipe."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from attnscope.figures import grouped_bars
from attnscope.labs import CLAIMS, Lab, Measurement, Result, Verdict
from attnscope.labs.printing import STYLES, show, show_table
from attnscope.labs.result import Table

BECAUSE = "In [bold]three[/bold] of four runs, and in 0.5 of the rest, it was as it is said, and never the other way."


@pytest.fixture(scope="module")
def result() -> Result:
    lab = Lab("trial", "Does [red]it[/red] work?", seed=4)
    lab.table("Lengths", ("name", "how many", "is even"), [("a\tb", 4096, True), ("c", 0.123456789, False)], note="n")
    lab.figure("bars", grouped_bars({"a": {"x": 1.0}}, ylabel="y"), "bars of [b]a[/b]")
    lab.decide("1a", Verdict.HOLDS, BECAUSE, Measurement(name="share [x]", value=0.5, low=0.4, high=0.6))
    lab.decide("2", Verdict.DOES_NOT_HOLD, BECAUSE, Measurement(name="loss", value=math.nan, high=1.0))
    lab.decide(
        "5", Verdict.HOLDS_WHEN, BECAUSE, Measurement(name="n", value=2359296, low=9, high=1e9), condition="it rains"
    )
    return lab.result


def on_terminal(result: Result, width: int, *, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, color_system="truecolor" if colours else None
    )
    show(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def piped(result: Result) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=20)
    show(result, console)
    return [line.split("\t") for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_pipe_gets_one_line_for_each_thing_and_nothing_is_rounded_wrapped_or_coloured(result: Result) -> None:
    because, said = BECAUSE, {claim: CLAIMS[claim].text for claim in ("1a", "2", "5")}
    assert piped(result) == [
        ["lab", "trial", "small", "4", "Does [red]it[/red] work?"],
        [""],
        ["table", "Lengths"],
        ["name", "how many", "is even"],
        ["a b", "4096", "yes"],
        ["c", "0.1234568", "no"],
        ["note", "n"],
        [""],
        ["figure", "bars", "bars of [b]a[/b]"],
        [""],
        ["claim", "1a", "holds", said["1a"], because],
        ["measurement", "1a", "share [x]", "0.5", "inside", "0.4 to 0.6"],
        [""],
        ["claim", "2", "inconclusive", said["2"], because],
        ["measurement", "2", "loss", "nan", "outside", "at most 1"],
        [""],
        ["claim", "5", "holds when it rains", said["5"], because],
        ["measurement", "5", "n", "2359296", "inside", "9 to 1,000,000,000"],
    ]


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_every_word_is_shown_on_a_terminal_of_any_width(result: Result, width: int) -> None:
    text = on_terminal(result, width)
    assert max(map(len, text.splitlines())) <= width
    # Columns stand beside each other, so that words of one cell are not in one row of the text: compare them as a bag.
    seen = "".join(text.split())
    for words in (BECAUSE, "Does [red]it[/red] work?", "bars of [b]a[/b]", "share [x]", CLAIMS["1a"].text, "4,096"):
        for word in words.split():
            assert word in seen, word


def test_a_number_that_left_its_margin_can_be_told_without_colours(result: Result) -> None:
    text = on_terminal(result, 120)
    assert "nan  not at most 1  loss" in text
    assert "0.5  0.4 to 0.6  share [x]" in text


def test_the_verdicts_come_once_more_at_the_end(result: Result) -> None:
    last = on_terminal(result, 120).rstrip("\n").rpartition("\n")[2]
    assert last == "1a holds, 2 inconclusive, 5 holds when"


def test_verdicts_have_their_colours_and_those_of_different_kinds_differ(result: Result) -> None:
    assert len(set(STYLES.values())) == len(STYLES) == len(Verdict)
    text = on_terminal(result, 120, colours=True)
    assert "\x1b[1;32mholds\x1b[0m\n" in text
    assert "\x1b[1;7;31minconclusive\x1b[0m\n" in text
    assert "\x1b[1;33mholds when\x1b[0m it rains\n" in text


def test_a_column_of_verdicts_has_colours_and_other_columns_have_none() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="truecolor")
    rows = (("holds", "holds when it rains"), ("holds", "does not hold"))
    show_table(Table(title="", columns=("said", "verdict"), rows=rows), console)
    first, second = console.file.getvalue().splitlines()[-2:]  # type: ignore[attr-defined]
    assert first.startswith("holds")
    assert "\x1b[1;33mholds when it rains" in first
    assert "\x1b[1;31mdoes not hold" in second


def test_columns_of_numbers_stand_to_the_right_and_an_empty_table_has_its_names() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    show_table(Table(title="t", columns=("name", "n"), rows=(("a", 5), ("b", 12345.0))), console)
    show_table(Table(title="", columns=("only", "names"), rows=()), console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[:2] + lines[3:5] == ["t", "name       n", "a          5", "b     12,345"]
    assert lines[5] == "only  names"
