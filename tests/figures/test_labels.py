"""Tokens become labels that any font can draw."""

from __future__ import annotations

import matplotlib
import pytest
from matplotlib.figure import Figure

from attnscope.figures.labels import LONGEST, token_text
from tests.figures.drawn import AWKWARD


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("  the", "··the"),
        ("\r\n", "[D]↵"),
        ("$5 $6", r"\$5·\$6"),
        (r"\$", r"\\$"),
        ("", "∅"),
        ("a🦞", "a[1F99E]"),
        ("\x07", "[7]"),
        ("日", "[65E5]"),
        ("x" * 30, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_a_token_becomes_text(token: str, text: str) -> None:
    assert token_text(token) == text


@pytest.mark.parametrize("token", AWKWARD)
def test_no_token_starts_a_formula(token: str) -> None:
    shown, formula = Figure().text(0, 0, token_text(token))._preprocess_math(token_text(token))  # pyright: ignore[reportAttributeAccessIssue]
    assert not formula
    assert shown.count("$") == token.count("$")


def test_a_font_that_is_not_there_is_passed_over() -> None:
    with matplotlib.rc_context({"font.family": ["No Such Font", "DejaVu Sans"]}):
        assert token_text("é🦞") == "é[1F99E]"
    with matplotlib.rc_context({"font.family": ["cmr10"]}):
        assert token_text("é") == "[E9]"
