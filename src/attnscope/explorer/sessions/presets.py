"""Texts to begin with, each with what there is to see in it.

Out: texts and notes. What the notes say of SmolLM2-135M is tested; other models have such heads elsewhere, or not.
Does not know: models. Memory: O(1).
"""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """A text, what to look for, and where that is in SmolLM2-135M: layer and head, counted from 0."""

    text: str
    look_for: str
    layer: int
    head: int

    @property
    def note(self) -> str:
        """What to look for, and where."""
        return f"{self.look_for} In SmolLM2-135M: layer {self.layer}, head {self.head}."


PRESETS = (
    Preset(
        "the dog that bit the man fled",
        "Who fled? The man stands next to “fled”, but some head looks back from it to the dog.",
        13,
        8,
    ),
    Preset(
        "The animal did not cross the street because it was too tired.",
        "What does “it” stand for? Look for a head in which it looks at the animal, and not at the street.",
        13,
        8,
    ),
    Preset(
        "My words are river seven candle green lamp river seven candle green lamp",
        "The list comes twice. In the second round, an induction head looks from each word at the one that came after "
        "it in the first round: what to expect next.",
        17,
        5,
    ),
    Preset(
        "average = (first + second) / (len(items) + 1)",
        "Which bracket does a closing bracket close? Look for a head in which it looks at its opening one.",
        8,
        4,
    ),
    Preset(
        "The keys to the old wooden cabinet are on the table.",
        "“are”, and not “is”: a head looks past the cabinet at the keys, which are more than one.",
        9,
        7,
    ),
    Preset(
        "When Mary and John went to the store, John gave a drink to",
        "Who gets the drink? At the last word, a head looks at the name that comes next. Let the model go on to see it "
        "written.",
        24,
        4,
    ),
    Preset(
        "Every word of this sentence looks at the word before it.",
        "A previous-token head: one bright line below the diagonal. Most models have several, and other heads build on "
        "them.",
        16,
        0,
    ),
)
