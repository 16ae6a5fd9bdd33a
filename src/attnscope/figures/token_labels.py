"""Tokens as text that a font can draw and a reader can tell apart.

Spaces and line ends become signs, `$` never starts a formula, and a character that no font in use has becomes its code
point. To see it instead, name a font that has it: `matplotlib.rcParams["font.family"] = ["sans-serif", "Noto Sans"]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attnscope.errors import ShapeError
from attnscope.extras import import_extra

SIGNS = {" ": "·", "\n": "↵", "\t": "⇥"}
LONGEST = 18  # characters of a token that are shown
POINTS = 6.5  # the size of a token in a figure, and a little more is the room it needs
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def format_token(token: str) -> str:
    r"""A token as a label.

    >>> format_token(" cost"), format_token("$5"), format_token("a\n"), format_token("")
    ('·cost', '\\$5', 'a↵', '∅')
    """
    text = token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"
    text = "".join(SIGNS.get(character, character) for character in text) or "∅"
    fonts = _fonts()
    return "".join(_drawable(character, fonts) for character in text).replace("$", r"\$")


def check_tokens(tokens: Sequence[str] | None, length: int, axis: str, name: str) -> None:
    """Refuse tokens that are not one for each query or key; `axis` says which, `name` who asks."""
    if isinstance(tokens, str):
        raise ShapeError(f"{name}: tokens are a list of strings, one for each of the {length} {axis}, got one string")
    if tokens is not None and len(tokens) != length:
        raise ShapeError(f"{name}: a matrix with {length} {axis} takes {length} tokens for them, got {len(tokens)}")


def stride(length: int, inches: float) -> int:
    """Each how many-th of so many labels along an axis leaves room for itself.

    >>> stride(60, 6.0), stride(256, 6.0)
    (1, 5)
    """
    least = length * POINTS * 1.08 / (inches * 72)
    return next((step for step in STEPS if step >= least), math.ceil(least))


def _fonts() -> list[Any]:
    """The fonts that matplotlib will look through for a character."""
    manager = import_extra("matplotlib.font_manager")
    paths = []
    for family in manager.FontProperties().get_family():
        try:
            paths.append(manager.findfont(manager.FontProperties(family=family), fallback_to_default=False))
        except ValueError:  # not installed: matplotlib goes on to the next one, too
            continue
    return [manager.get_font(path) for path in paths or [manager.findfont(manager.FontProperties())]]


def _drawable(character: str, fonts: list[Any]) -> str:
    known = character.isprintable() and any(font.get_char_index(ord(character)) for font in fonts)
    return character if known else f"[{ord(character):X}]"
