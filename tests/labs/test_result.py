"""A result is the same in memory, as HTML and in files, and its files are the same each time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnscope.figures import grouped_bars
from attnscope.labs import Lab, Measurement, Result, Verdict
from attnscope.labs.result import Table, format_cell
from attnscope.version import __version__


def finished() -> Result:
    lab = Lab("trial", "Is a < b?", seed=2)
    lab.table("Numbers & signs", ("name", "value"), [("<b>", 0.25), ("worst", math.nan), ("most", math.inf)], note="n")
    lab.figure("bars", grouped_bars({"a": {"x": 1.0}}, ylabel="y"), "a caption")
    lab.decide("1a", Verdict.HOLDS, "as measured", Measurement(name="share", value=0.5, low=0.4, high=0.6))
    lab.decide("2", Verdict.DOES_NOT_HOLD, "as measured", Measurement(name="loss", value=math.nan, high=1.0))
    return lab.result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results") / "new" / "trial"
    finished().write(place)
    return place


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_file_is_strict_json_with_all_that_was_found(folder: Path) -> None:
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert found == json.loads(json.dumps(finished().to_json()))
    assert [found[key] for key in ("attnscope", "lab", "title", "size", "seed")] == [
        __version__,
        "trial",
        "Is a < b?",
        "small",
        2,
    ]
    (table,) = found["tables"]
    assert table["rows"] == [["<b>", 0.25], ["worst", "nan"], ["most", "inf"]]
    assert found["figures"] == [{"name": "bars", "caption": "a caption"}]
    holds, inconclusive = found["claims"]
    assert (holds["claim"], holds["verdict"], holds["expected"]) == ("1a", "holds", "holds")
    assert holds["measurements"] == [
        {"name": "share", "value": 0.5, "low": 0.4, "high": 0.6, "interval": "0.4 to 0.6", "is_inside": True}
    ]
    assert (inconclusive["verdict"], inconclusive["expected"]) == ("inconclusive", "does not hold")
    assert inconclusive["measurements"] == [
        {"name": "loss", "value": "nan", "low": None, "high": 1.0, "interval": "at most 1", "is_inside": False}
    ]


def test_figures_are_written_twice_and_come_out_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    finished().write(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["bars.png", "bars.svg", "result.json"] == sorted(path.name for path in folder.iterdir())
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "bars.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_html_has_everything_and_its_signs_are_escaped() -> None:
    html = finished()._repr_html_()
    for part in ("Numbers &amp; signs", "&lt;b&gt;", "0.25", "a caption", "data:image/png;base64,", "<b>Holds</b>"):
        assert part in html
    assert "<b>Inconclusive</b>" in html
    ElementTree.fromstring(f"<div>{re.sub('<img[^>]*>', '', html)}</div>")  # every element ends


def test_numbers_stand_at_the_right_side_and_words_at_the_left() -> None:
    (table,) = finished().tables
    assert table.is_numeric == (False, True)
    assert '<td style="text-align: left">worst</td><td style="text-align: right">nan</td>' in finished()._repr_html_()
    assert Table(title="", columns=("yes or no", "mixed"), rows=((True, 1), (False, "2"))).is_numeric == (False, False)


def test_inconclusive_verdicts_are_listed() -> None:
    assert [decision.claim for decision in finished().inconclusive] == ["2"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (1234567.8, "1,234,568"),
        (-2359296.0, "-2,359,296"),
        (999.96, "1000"),
        (0.00012345678, "0.0001235"),
        (1.75e11, "1.75e+11"),
        (math.nan, "nan"),
        ("(0.1, 0.2)", "(0.1, 0.2)"),
        (Verdict.HOLDS, "holds"),
    ],
)
def test_cells_are_shown_so_that_they_can_be_read(cell: object, text: str) -> None:
    assert format_cell(cell) == text
