"""The list of labs in teaching order, and `run`.

An experiment is a module of `attnscope.labs.experiments`. The first line of its docstring is its title. `PARTS` lists
its functions in order. Each takes the `Lab`; its name is the heading and its docstring the text of a section.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from attnscope.errors import SettingError, unknown

if TYPE_CHECKING:
    from attnscope.labs.lab import Lab
    from attnscope.labs.result import Result

SECONDS = {
    "scaling": 5,
    "training_without_scaling": 200,
    "worked_examples": 1,
    "masks": 1,
    "multi_head_attention": 40,
    "single_vs_two_heads": 20,
    "positional_encoding": 10,
    "sequence_reversal": 50,
    "length_extrapolation": 400,
    "attention_cost": 40,
    "path_length": 60,
    "sliding_window": 15,
    "linear_attention": 15,
    "hopfield": 5,
    "normalization": 2,
    "transformer_block": 20,
    "training_without_parts": 200,
    "untrained_heads": 3,
    "trained_heads": 70,
    "mini_gpt": 55,
    "exposure_bias": 190,
}
"""Approximate duration of each lab in seconds, at the small size on one core."""
NAMES = tuple(SECONDS)
"""The names of all labs, in the order of the docs."""


def load_experiment(name: str) -> ModuleType:
    """Import the module of a lab."""
    if name not in NAMES:
        raise SettingError(f"lab: {unknown('lab', name, NAMES)}")
    return import_module(f"attnscope.labs.experiments.{name}")


def title(module: ModuleType) -> str:
    """Return the title of a lab: the first line of its docstring."""
    return (module.__doc__ or "").partition("\n")[0]


def introduction(module: ModuleType) -> str:
    """Return the introduction of a lab: its docstring without the title."""
    return inspect.cleandoc(module.__doc__ or "").partition("\n")[2].strip()


SPELLINGS = {
    "feed forward": "feed-forward",
    "flash attention": "FlashAttention",
    "formula two": "formula, two",
    "gpt": "GPT",
    "multi head": "multi-head",
    "n gram": "n-gram",
    "rnn": "RNN",
    "self attention": "self-attention",
    "smollm2": "SmolLM2",
    "subject verb": "subject-verb",
}
"""How words of names are written in headings."""


def heading(part: str) -> str:
    """Turn the name of a lab or of a part into a heading.

    >>> heading("variance_of_the_scores")
    'Variance of the scores'
    >>> heading("multi_head_attention"), heading("mini_gpt"), heading("attention_without_feed_forward")
    ('Multi-head attention', 'Mini GPT', 'Attention without feed-forward')
    """
    words = part.replace("_", " ")
    for name, spelling in SPELLINGS.items():
        words = re.sub(rf"\b{name}\b", spelling, words)
    return words[0].upper() + words[1:]


def parts(module: ModuleType) -> Sequence[Callable[[Lab], None]]:
    """Return the functions of a lab, in order."""
    return module.PARTS


def run(
    name: str,
    *,
    size: Literal["small", "full"] = "small",
    seed: int = 0,
    model: str | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run a lab.

    Args:
        name: One of `NAMES`.
        size: "small" takes seconds to some minutes, "full" trains longer and draws more samples.
        seed: The random seed.
        model: A folder, GGUF file or hub name that replaces SmolLM2-135M-Instruct.
        step: Called with a description of each step.

    Returns:
        The tables, figures and verdicts of the run.

    Raises:
        SettingError: If there is no lab of that name.

    Example:
        >>> from attnscope.labs import run
        >>> [decision.claim for decision in run("worked_examples").decisions][:2]
        ['3a', '45']
    """
    from attnscope.labs.lab import Lab

    lab = Lab(name, title(load_experiment(name)), size=size, seed=seed, model=model, step=step)
    for _ in run_parts(lab):
        pass
    return lab.result


def run_parts(lab: Lab) -> Iterator[Result]:
    """Run the parts of a lab one after the other; yield the findings of each."""
    from attnscope.labs.profiling import one_thread

    functions = parts(load_experiment(lab.result.name))
    with one_thread():
        for number, part in enumerate(functions, 1):
            lab.step(f"part {number} of {len(functions)}, {heading(part.__name__).lower()}")
            part(lab)
            yield lab.new_findings()
