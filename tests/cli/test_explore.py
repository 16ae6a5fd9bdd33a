"""`attnscope explore`: in a process that Ctrl-C ends, and in this one, whose server is asked instead of waited for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from attnscope.cli.main import main
from attnscope.recording import Trace
from tests.cli.serving import Visitor, asked, ended, started
from tests.explorer.survey_folder import make_survey


def test_a_saved_trace_is_shown_until_ctrl_c(tmp_path: Path) -> None:
    Trace.from_attentions([torch.eye(3)[None, None]], tokens=["so", "it", "is"]).save(tmp_path / "shown")
    process, address = started("explore", tmp_path / "shown", "--no-browser")
    status, told = asked(address)
    assert status == 200
    assert '"name":"shown","tokens":3,"layers":1,"heads":1' in told
    assert asked(address, "/")[0] == 200
    assert ended(process) == (0, "", "")


def test_several_traces_are_shown_together(tmp_path: Path, visitor: Visitor) -> None:
    for name in ("one", "two"):
        Trace.from_attentions([torch.rand(1, 1, 3, 3).softmax(-1)]).save(tmp_path / name)
    assert main(["explore", str(tmp_path / "one"), str(tmp_path / "two"), "--no-browser"]) == 0
    ((_, session),) = visitor.answers
    assert re.findall(r'"name":"(\w+)"', session) == ["one", "two"]


def test_without_a_trace_there_is_an_example(visitor: Visitor) -> None:
    assert main(["explore", "--no-browser"]) == 0
    ((_, session),) = visitor.answers
    assert re.search(r'"traces":\[\].*"example":"[0-9a-f]{32}"', session)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["explore", "nowhere"], "is not a folder"),
        (["look", "nowhere", "a text", "--tokens", "0"], "at least 1"),
        (["look", "nowhere", "--tokens", "3"], "--tokens needs a TEXT"),
        (["look", "nowhere", "missing.txt"], "looks like a file"),
        (["look", "nowhere", " "], "the text is empty"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert reason in errors


def test_a_port_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Trace.from_attentions([torch.eye(3)[None, None]]).save(tmp_path / "shown")
    assert main(["explore", str(tmp_path / "shown"), "--port", "70000", "--no-browser"]) == 2
    assert "to 65,535, got 70000" in capsys.readouterr().err


def test_a_head_is_saved_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.eye(3).expand(1, 4, 3, 3)
    Trace.from_attentions([weights, weights], tokens=["so", "it", "is"]).save(tmp_path / "shown")
    page = tmp_path / "page.html"
    assert main(["explore", str(tmp_path / "shown"), "--save", str(page), "--head", "L1H3"]) == 0
    assert re.fullmatch(rf"{re.escape(str(page))}: 8 of 8 heads, \d+\.\d MB\n", capsys.readouterr().out)
    assert "/L1H3/map" in page.read_text()
    for options, words in (
        (["--head", "L1H4"], "H0, H1, H2, H3"),
        (["--head", "L2H0"], "layers 0 to 1"),
        (["--head", "3,1"], "such as L12H3"),
        ([str(tmp_path)], "got 2 folders"),
    ):
        assert main(["explore", str(tmp_path / "shown"), *options, "--save", str(tmp_path / "no.html")]) != 0
        assert words in capsys.readouterr().err
    assert not (tmp_path / "no.html").exists()


def test_a_survey_is_shown_with_all_its_heads(
    tmp_path: Path, visitor: Visitor, capsys: pytest.CaptureFixture[str]
) -> None:
    survey = str(make_survey(tmp_path))
    visitor.paths = ["/api/1/survey/about", "/survey"]
    assert main(["explore", survey, "--model", str(tmp_path / "small-model"), "--no-browser"]) == 0
    (about_status, about), (page_status, _) = visitor.answers
    assert (about_status, page_status) == (200, 200)
    assert '"name":"surveyed","model":"small-model"' in about
    capsys.readouterr()
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "survey.json").write_text("{}")
    for arguments, words in (
        ([survey, survey], "got 2 folders"),
        ([survey, "--save", "page.html"], "got a survey"),
        (["--model", "small-model"], "small-model"),
        ([str(begun)], "is not finished"),
    ):
        assert main(["explore", *arguments, "--no-browser"]) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert words in errors
