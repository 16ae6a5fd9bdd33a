"""Formats tokens as text that a font can draw.

Spaces and line breaks become visible symbols, `$` does not start a formula, and a character that no font has becomes
its code point. To draw it instead, set a font that has it:
`matplotlib.rcParams["font.family"] = ["sans-serif", "Noto Sans"]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attnscope.errors import ShapeError
from attnscope.extras import import_extra

SYMBOLS = {" ": "·", "\n": "↵", "\t": "⇥"}
MAX_TOKEN_LENGTH = 18  # characters
POINTS = 6.5  # font size of a token
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def format_token(token: str) -> str:
    r"""Format a token as a label.

    >>> format_token(" cost"), format_token("$5"), format_token("a\n"), format_token("")
    ('·cost', '\\$5', 'a↵', '∅')
    """
    text = token if len(token) <= MAX_TOKEN_LENGTH else token[: MAX_TOKEN_LENGTH - 1] + "…"
    text = "".join(SYMBOLS.get(character, character) for character in text) or "∅"
    fonts = _fonts()
    return "".join(_drawable(character, fonts) for character in text).replace("$", r"\$")


def check_tokens(tokens: Sequence[str] | None, length: int, axis: str, name: str) -> None:
    """Raise unless there is one token per query or key; `axis` and `name` (the caller) are for the error."""
    if isinstance(tokens, str):
        raise ShapeError(f"{name}: expected a list of {length} tokens, one for each of the {axis}, got one string")
    if tokens is not None and len(tokens) != length:
        raise ShapeError(f"{name}: expected {length} tokens for the {length} {axis}, got {len(tokens)}")


def label_step(length: int, inches: float) -> int:
    """Return the step between labels at which they fit along an axis.

    >>> label_step(60, 6.0), label_step(256, 6.0)
    (1, 5)
    """
    least = length * POINTS * 1.08 / (inches * 72)
    return next((step for step in STEPS if step >= least), math.ceil(least))


def _fonts() -> list[Any]:
    """Return the fonts that matplotlib searches for a character."""
    manager = import_extra("matplotlib.font_manager")
    paths = []
    for family in manager.FontProperties().get_family():
        try:
            paths.append(manager.findfont(manager.FontProperties(family=family), fallback_to_default=False))
        except ValueError:  # not installed: matplotlib tries the next one, too
            continue
    return [manager.get_font(path) for path in paths or [manager.findfont(manager.FontProperties())]]


def _drawable(character: str, fonts: list[Any]) -> str:
    known = character.isprintable() and any(font.get_char_index(ord(character)) for font in fonts)
    return character if known else f"[{ord(character):X}]"
