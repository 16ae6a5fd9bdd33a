"""What a run is made of: settings, data and a model.

In: the functions of `recipes`, or your own. Out: `Recipe`, which the loop trains. Data and model are made by the run
itself, in its folder, since only there is known which rank goes first.
Does not know: the loop. Memory: none before the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.train.batch import Dataset
from attnscope.train.settings import Settings


class Data(NamedTuple):
    """What a model learns from, and is tested on."""

    training: Dataset
    validation: Dataset
    tokenizer: AnyTokenizer | None = None
    """Of models that write text."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete description of a run."""

    name: str
    settings: Settings
    data: Callable[[Path, Settings], Data]
    """Makes the data in the folder of the run, or opens what was made there before."""
    model: Callable[[Data, Settings], nn.Module]
    """Makes the model, with its first weights."""
    prompt: str | None = None
    """What samples of text begin with; None for the first words of the validation data."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What else decides the result; a folder with another run in it is refused."""
