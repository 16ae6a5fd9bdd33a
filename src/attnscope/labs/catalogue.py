"""Which experiments there are, in the order in which they teach, and how one is run.

An experiment is a module of `attnscope.labs.experiments`. Its docstring begins with its question; `PARTS` are its
functions, in order, each of which takes the `Lab`, and says in its docstring what it is about.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from attnscope.errors import SettingError, unknown

if TYPE_CHECKING:
    from attnscope.labs.lab import Lab
    from attnscope.labs.result import Result

SECONDS = {
    "scaling": 4,
    "by_hand": 1,
    "masks": 1,
    "many_heads": 15,
    "two_relations": 20,
    "order": 10,
    "reversal": 15,
    "past_the_length": 130,
    "cost": 40,
    "windows": 15,
    "linear": 5,
    "hopfield": 5,
    "norms": 2,
    "block": 20,
    "untrained_heads": 3,
    "trained_heads": 60,
    "mini_gpt": 55,
    "exposure_bias": 60,
}
"""About how long an experiment takes at its small size on one core."""
NAMES = tuple(SECONDS)
"""All experiments, in the order of the docs."""


def experiment(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in NAMES:
        raise SettingError(f"lab: {unknown('lab', name, NAMES)}")
    return import_module(f"attnscope.labs.experiments.{name}")


def question(module: ModuleType) -> str:
    """What an experiment asks: the first line of its docstring."""
    return (module.__doc__ or "").partition("\n")[0]


def introduction(module: ModuleType) -> str:
    """What an experiment says beside its question: the rest of its docstring."""
    return inspect.cleandoc(module.__doc__ or "").partition("\n")[2].strip()


def heading(part: str) -> str:
    """The name of a part as a heading.

    >>> heading("how_far_scores_spread")
    'How far scores spread'
    """
    return part.replace("_", " ").capitalize()


def parts(module: ModuleType) -> Sequence[Callable[[Lab], None]]:
    """The functions of an experiment, in order."""
    return module.PARTS


def run(
    name: str,
    *,
    size: Literal["small", "full"] = "small",
    seed: int = 0,
    model: str | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run one experiment. `step` is told what is being done; `model` is a folder or name instead of SmolLM2."""
    from attnscope.labs.lab import Lab

    lab = Lab(name, question(experiment(name)), size=size, seed=seed, model=model, step=step)
    for _ in run_parts(lab):
        pass
    return lab.result


def run_parts(lab: Lab) -> Iterator[Result]:
    """Run the parts of the experiment that a lab is for, one after the other: what came of each."""
    from attnscope.labs.measuring import one_thread

    chosen = parts(experiment(lab.result.name))
    with one_thread():
        for number, part in enumerate(chosen, 1):
            lab.step(f"part {number} of {len(chosen)}, {heading(part.__name__).lower()}")
            part(lab)
            yield lab.news()
