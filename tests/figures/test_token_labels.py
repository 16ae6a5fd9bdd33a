"""Tokens become labels that any font can draw."""

from __future__ import annotations

import matplotlib
import pytest
from matplotlib.figure import Figure

from attnscope.figures.token_labels import MAX_TOKEN_LENGTH, format_token
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
        ("x" * 30, "x" * (MAX_TOKEN_LENGTH - 1) + "…"),
    ],
)
def test_a_token_becomes_text(token: str, text: str) -> None:
    assert format_token(token) == text


@pytest.mark.parametrize("token", AWKWARD)
def test_no_token_starts_a_formula(token: str) -> None:
    shown, formula = Figure().text(0, 0, format_token(token))._preprocess_math(format_token(token))  # pyright: ignore[reportAttributeAccessIssue]
    assert not formula
    assert shown.count("$") == token.count("$")


def test_a_font_that_is_not_there_is_passed_over() -> None:
    with matplotlib.rc_context({"font.family": ["No Such Font", "DejaVu Sans"]}):
        assert format_token("é🦞") == "é[1F99E]"
    with matplotlib.rc_context({"font.family": ["cmr10"]}):
        assert format_token("é") == "[E9]"
