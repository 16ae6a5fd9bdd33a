"""Exercises: the file a learner begins with, the answer that comes back, hints, and a judgement in words.

In: the name of an exercise, or a file with an answer. Out: text, or an `Outcome`. An answer is code: it is run here, in
this process; `attnscope.labs.checking` does the same at arm's length.
Does not know: what the exercises ask. Memory: the answer's own.
"""

from __future__ import annotations

import inspect
import io
import linecache
import math
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import SettingError, unknown
from attnscope.labs.exercises import NAMES
from attnscope.labs.measuring import one_thread

HEADER = "# attnscope exercise: "
FOOTER = """

# Check it: attnscope lab check THIS_FILE
# A hint:   attnscope lab hint THIS_FILE
"""
KEPT_CHARACTERS = 4_000
"""So much of what an answer prints is kept."""


class Wrong(Exception):  # noqa: N818 - an answer is wrong, the program is not
    """What is wrong with an answer: a short kind for machines, and words for the learner."""

    def __init__(self, kind: str, words: str):
        super().__init__(f"{kind}: {words}")
        self.kind, self.words = kind, words


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of looking at an answer."""

    exercise: str
    kind: str = ""
    """What is wrong, in a short phrase; nothing where the answer is right."""
    words: str = ""
    """What was seen and where to look; or, where the answer is right, what it has shown."""
    printed: str = ""
    """What the answer itself printed."""

    @property
    def is_right(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.kind


class Answer:
    """A learner's file, loaded. Whatever it does that it should not comes out as `Wrong`."""

    def __init__(self, path: Path, source: str):
        self.path = path
        self._module = ModuleType("answer")
        self._module.__file__ = str(path)
        linecache.checkcache(str(path))
        sys.modules["answer"] = self._module  # dataclasses look their module up
        with self.running("the file"):
            exec(compile(source, str(path), "exec"), self._module.__dict__)  # noqa: S102 - what an answer is for

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the answer. What it raises becomes `Wrong`, and so does an input that it changes."""
        function = getattr(self._module, name, None)
        if not callable(function):
            raise Wrong("a function is missing", f"There is no function `{name}` in the file; the starter has one.")

        def guarded(*arguments: Any, **named: Any) -> Any:
            before = [_copy(value) for value in (*arguments, *named.values())]
            with self.running(f"`{name}({_described(function, arguments, named)})`"):
                returned = function(*arguments, **named)
            if not all(map(_same, before, (*arguments, *named.values()))):
                raise Wrong(
                    "the input is changed",
                    f"After `{name}` ran, a tensor that it was given holds other numbers. Whoever called it still "
                    "needs them: is there an operation that works in place, such as one whose name ends in `_`?",
                )
            return returned

        return guarded

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Code of the learner runs inside: what it raises becomes `Wrong`, with its line. `what` is named in words."""
        try:
            yield
        except Wrong:
            raise
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise Wrong("not Python", f"Line {error.lineno} is not Python: {error.msg}: `{line}`") from error
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == str(self.path)]
            if isinstance(error, NotImplementedError) and own and own[-1] is frames[-1]:
                name = what.partition("(")[0].strip("`")
                raise Wrong("nothing is there yet", f"Nothing is there yet: fill in {name}.") from error
            said = f"{type(error).__name__}: {error}".rstrip(": .")
            place = f" It happened in line {own[-1].lineno}: `{own[-1].line}`" if own else ""
            raise Wrong("it raises", f"Running {what} raised {said}.{place}") from error


def tensor(value: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """What an answer returned, if it is a tensor of this shape (and dtype); otherwise `Wrong`."""
    if value is None:
        raise Wrong("it returns nothing", f"{name} is None: is there a `return` on every way through the function?")
    if not isinstance(value, Tensor):
        raise Wrong("not a tensor", f"{name} should be a tensor; it is a {type(value).__name__}.")
    if tuple(value.shape) != shape:
        raise Wrong("wrong shape", f"{name} has shape {tuple(value.shape)}; the task asks for {shape}.")
    if dtype is not None and value.dtype != dtype:
        raise Wrong("wrong dtype", f"{name}: {_dtype(value)} came back, where {_name(dtype)} went in.")
    return value


def several(value: Any, name: str, count: int) -> tuple[Any, ...]:
    """What an answer returned, if it is a tuple or list of so many things; otherwise `Wrong`."""
    if value is None:
        raise Wrong("it returns nothing", f"{name} is None: is there a `return` on every way through the function?")
    if not isinstance(value, tuple | list) or len(value) != count:
        got = f"{len(value)} of them" if isinstance(value, tuple | list) else f"one {type(value).__name__}"
        raise Wrong("not what was asked for", f"{name} should be {count} things, in a tuple; it is {got}.")
    return tuple(value)


def number(value: Any, name: str) -> float:
    """What an answer returned, if it is one number (or a tensor of one); otherwise `Wrong`."""
    if value is None:
        raise Wrong("it returns nothing", f"{name} is None: is there a `return` on every way through the function?")
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, Real) and not isinstance(value, bool | int):
        value = int(value) if isinstance(value, Integral) else float(value)  # fractions, and those of numpy
    if isinstance(value, bool) or not isinstance(value, int | float):
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise Wrong("not a number", f"{name} should be one number; it is {got}.")
    if not math.isfinite(value):
        raise Wrong("not a finite number", f"{name} is {value}. Print what goes into it, step by step.")
    return value


def truth(value: Any, name: str) -> bool:
    """What an answer returned, if it is one yes or no (also one of torch or numpy); otherwise `Wrong`."""
    if isinstance(value, bool | np.bool_) or (
        isinstance(value, Tensor) and value.dtype == torch.bool and value.numel() == 1
    ):
        return bool(value)
    if value is None:
        raise Wrong("it returns nothing", f"`{name}` returns None: is there a `return` on every way through it?")
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise Wrong("not a yes or no", f"`{name}` should return one True or False; it returns {got}.")


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers that are the same every time; drawn in fp64, so alike in every dtype.

    >>> normal(2, seed=0)
    tensor([ 1.5410, -0.2934])
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def first_difference(actual: Tensor, expected: Tensor, tolerance: float) -> tuple[int, ...] | None:
    """The index of the first entry that is off by more than the tolerance (NaN is), or None.

    >>> first_difference(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.5]]), 1e-6)
    (0, 1)
    """
    off = ~((actual.double() - expected.double()).abs() <= tolerance) & (actual.double() != expected.double())
    return tuple(off.nonzero()[0].tolist()) if off.any() else None


def at(place: Sequence[int]) -> str:
    """An index in words for learners.

    >>> at((3,)), at((0, 3))
    ('3', '(0, 3)')
    """
    return str(place[0]) if len(place) == 1 else f"({', '.join(map(str, place))})"


def module_of(name: str) -> ModuleType:
    """The module of an exercise."""
    if name not in NAMES:
        raise SettingError(f"exercise: {unknown('exercise', name, NAMES)}")
    return import_module(f"attnscope.labs.exercises.{name}")


def task(name: str) -> str:
    """What an exercise asks, as Markdown; the first line is its title."""
    return inspect.cleandoc(module_of(name).__doc__ or "")


def starter(name: str) -> str:
    """The file to begin with: the task in comments, and functions to fill in."""
    told = "\n".join(f"# {line}".rstrip() for line in task(name).splitlines())
    return f"{HEADER}{name}\n#\n{told}\n\n{module_of(name).STARTER.strip()}\n{FOOTER}"


def hint(place: str | Path, number: int = 1) -> str:
    """A hint for an exercise, or for the exercise whose answer is in a file; the first gives away the least."""
    name = str(place) if str(place) in NAMES else exercise_of(Path(place))
    hints = module_of(name).HINTS
    if not 1 <= number <= len(hints):
        raise SettingError(f"hint: {number} was asked for, and {name} has hints 1 to {len(hints)}")
    return f"Hint {number} of {len(hints)}: {hints[number - 1]}"


def exercise_of(path: Path) -> str:
    """The name of the exercise that a file says it answers."""
    found = re.search(rf"^{HEADER.strip()}[ \t]*(\w+)", _read(path), re.MULTILINE)
    if found is None:
        raise SettingError(f"exercise: {path} does not say which exercise it is; its first line should be {HEADER}NAME")
    module_of(found[1])
    return found[1]


def judge(path: str | Path, name: str | None = None) -> Outcome:
    """Run the answer in a file, in this process, and say what is wrong with it. The file says which exercise it is for,
    unless that is given by name. An answer that never ends is waited for.
    """
    path = Path(path).resolve()
    name = name or exercise_of(path)
    exercise, source, printed = module_of(name), _read(path), _Printed()
    try:
        with redirect_stdout(printed), torch.random.fork_rng(devices=[]), warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")  # alike in every process, whatever its own rules are
            torch.manual_seed(0)
            exercise.check(Answer(path, source))
    except Wrong as wrong:
        return Outcome(exercise=name, kind=wrong.kind, words=wrong.words, printed=printed.text)
    finally:
        sys.modules.pop("answer", None)
    return Outcome(exercise=name, words=getattr(exercise, "AFTERWARDS", ""), printed=printed.text)


class _Printed(io.TextIOBase):
    """The beginning of what an answer prints, so that one which prints for ever fills no memory."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, /) -> int:
        self.text += text[: KEPT_CHARACTERS - len(self.text)]
        return len(text)


def _read(path: Path) -> str:
    if not path.is_file():
        raise SettingError(f"exercise: there is no file {path}; `attnscope lab exercise NAME FILE` writes one")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"exercise: {path} is not text in UTF-8 ({error}); save it as such") from error


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(before: Any, after: Any) -> bool:
    if not isinstance(before, Tensor) or before.numel() == 0:
        return True
    return before.shape == after.shape and torch.equal(before.nan_to_num(), after.detach().nan_to_num())


def _described(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The arguments of a call in words, with the learner's names for them where they fit."""
    try:
        bound = inspect.signature(function).bind(*arguments, **named).arguments.items()
    except (TypeError, ValueError):
        bound = [*((f"argument {place}", value) for place, value in enumerate(arguments, 1)), *named.items()]
    return ", ".join(f"{name}: {_short(value)}" for name, value in bound)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{_dtype(value)} {tuple(value.shape)}"
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:40]}..."


def _dtype(value: Tensor) -> str:
    return _name(value.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
