"""The contracts hold here, and a broken one is reported."""

import io

import pytest
import torch
from rich.console import Console

from attnscope.attention import scores
from attnscope.cli import main as command
from attnscope.doctor import verify


def test_every_contract_holds_on_this_cpu() -> None:
    pipe = io.StringIO()
    assert verify(Console(file=pipe))
    assert "cpu\tfloat32\tfused\t9 of 9" in pipe.getvalue().splitlines()
    assert "cpu\tbfloat16\tstreaming\t3 of 3" in pipe.getvalue().splitlines()


def test_a_broken_contract_is_named_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoiled(self: scores.Sinks, output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return output, lse

    monkeypatch.setattr(scores.Sinks, "apply", spoiled)
    assert command.main(["doctor", "--verify"]) == 2
    captured = capsys.readouterr()
    assert "sinks on cpu in torch.float32: output has an error of" in captured.out
    assert "differs from the dense reference on this machine" in captured.err
