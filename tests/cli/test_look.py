"""`attnscope look`, run as a user runs it, on SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.cli.main import main
from attnscope.recording import Trace
from tests.cli.serving import Visitor, asked, ended, started

SMOLLM2 = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"


TEXT = "The cat sat on the mat because it was tired."


def assert_five_tokens_are_shown(session: dict[str, Any]) -> None:
    """Check what a browser is told of SmolLM2 that has read the first five tokens of a text."""
    assert (session["model"], session["has_model"], session["can_generate"], session["has_baseline"]) == (
        "smollm2-135m", True, True, True)  # fmt: skip
    assert [(trace["tokens"], trace["layers"], trace["heads"]) for trace in session["traces"]] == [(5, 30, 270)]


def test_a_model_that_has_read_a_text_is_shown(tmp_path: Path, visitor: Visitor) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    assert main(["look", str(SMOLLM2), str(tmp_path / "text.txt"), "--tokens", "5", "--no-browser"]) == 0
    assert_five_tokens_are_shown(json.loads(visitor.answers[0][1]))


@pytest.mark.slow  # test_explore.py ends such a process, too
def test_a_model_is_shown_until_ctrl_c(tmp_path: Path) -> None:
    process, address = started("look", SMOLLM2, TEXT, "--tokens", "5", "--no-browser")
    status, told = asked(address)
    assert status == 200
    assert_five_tokens_are_shown(json.loads(told))
    assert ended(process) == (0, "", "")


def test_without_a_text_there_are_sentences_to_type(visitor: Visitor) -> None:
    assert main(["look", str(SMOLLM2), "--no-browser"]) == 0
    session = json.loads(visitor.answers[0][1])
    assert (session["traces"], session["has_model"]) == ([], True)


def test_a_saved_trace_is_pointed_to_the_other_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Trace.from_attentions([torch.eye(3)[None, None]]).save(tmp_path)
    assert main(["look", str(tmp_path)]) == 2
    assert f"attnscope explore {tmp_path}" in capsys.readouterr().err
