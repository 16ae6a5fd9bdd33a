"""What a run consists of: settings, data and a model.

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
    """Training and validation data."""

    training: Dataset
    validation: Dataset
    tokenizer: AnyTokenizer | None = None
    """The tokenizer of a language model; None for other tasks."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete description of a run."""

    name: str
    settings: Settings
    data: Callable[[Path, Settings], Data]
    """Creates the data in the folder of the run, or opens it."""
    model: Callable[[Data, Settings], nn.Module]
    """Creates the model with its initial parameters."""
    prompt: str | None = None
    """The prompt of samples; None for the first tokens of the validation data."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What else determines the result; a run cannot resume with another identity."""
