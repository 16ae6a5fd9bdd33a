"""Example texts, each with an attention pattern to look for.

The notes about SmolLM2-135M are tested; other models may have such heads elsewhere, or not at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn


class Preset(NamedTuple):
    """A text, what to look for, and the layer and head of SmolLM2-135M that show it, counted from 0."""

    text: str
    look_for: str
    layer: int
    head: int

    @property
    def note(self) -> str:
        """The description, with the layer and head."""
        return f"{self.look_for} In SmolLM2-135M: layer {self.layer}, head {self.head}."


PRESETS = (
    Preset(
        "the dog that bit the man fled",
        "Who fled? “man” is next to “fled”, but in some heads “fled” attends to “dog”.",
        13,
        8,
    ),
    Preset(
        "The animal did not cross the street because it was too tired.",
        "What does “it” refer to? Look for a head in which “it” attends to “animal” and not to “street”.",
        13,
        8,
    ),
    Preset(
        "My words are river seven candle green lamp river seven candle green lamp",
        "The list is repeated. In the second copy, each word of an induction head attends to the word that followed it "
        "in the first copy: the expected next word.",
        17,
        5,
    ),
    Preset(
        "average = (first + second) / (len(items) + 1)",
        "Matching brackets: look for a head in which a closing bracket attends to its opening one.",
        8,
        4,
    ),
    Preset(
        "The keys to the old wooden cabinet are on the table.",
        "Agreement: “are” attends past “cabinet” to the plural subject “keys”.",
        9,
        7,
    ),
    Preset(
        "When Mary and John went to the store, John gave a drink to",
        "Who gets the drink? The last word attends to the name that comes next. Generate from here to see it.",
        24,
        4,
    ),
    Preset(
        "Every word of this sentence looks at the word before it.",
        "A previous-token head: one bright line below the diagonal. Most models have several, and other heads use "
        "their output.",
        16,
        0,
    ),
)

SMOLLM2_SHAPE = {"num_layers": 30, "num_heads": 9, "hidden_size": 576, "vocab_size": 49152}
TRANSFORMERS_NAMES = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}


def list_presets(model: nn.Module) -> list[dict[str, Any]]:
    """List the presets; the layer and head are None unless the model has the shape of SmolLM2-135M."""
    config = getattr(model, "config", None)

    def get(name: str) -> object:
        return getattr(config, name, getattr(config, TRANSFORMERS_NAMES.get(name, name), None))

    known = all(get(name) == size for name, size in SMOLLM2_SHAPE.items())
    return [
        {
            "text": preset.text,
            "note": preset.note,
            "layer": preset.layer if known else None,
            "head": preset.head if known else None,
        }
        for preset in PRESETS
    ]
