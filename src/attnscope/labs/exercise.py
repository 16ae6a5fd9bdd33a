"""Exercises: starter files, hints, and feedback on answers.

`check_answer` runs the code of an answer in this process; `attnscope.labs.checking` runs it in a separate process.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import SettingError, unknown
from attnscope.labs.exercises import NAMES
from attnscope.labs.profiling import one_thread

HEADER = "# attnscope exercise: "
FOOTER = """

# Check it: attnscope lab check THIS_FILE
# A hint:   attnscope lab hint THIS_FILE
"""
MAX_PRINTED_CHARACTERS = 4_000
"""Output of an answer beyond this is discarded."""


class WrongAnswer(Exception):  # noqa: N818 - the answer is wrong, not the program
    """Raised by a check: a short name of the mistake, and a message for the learner."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The feedback on an answer."""

    exercise: str
    kind: str = ""
    """A short name of the mistake; empty if the answer is correct."""
    message: str = ""
    """What is wrong and where to look; a remark if the answer is correct."""
    printed: str = ""
    """The output of the answer itself."""

    @property
    def is_correct(self) -> bool:
        """Whether no mistake was found."""
        return not self.kind


class Answer:
    """The loaded file of a learner. Errors in it are raised as `WrongAnswer`."""

    def __init__(self, path: Path, source: str):
        self.path = path
        self._module = ModuleType("answer")
        self._module.__file__ = str(path)
        linecache.checkcache(str(path))
        sys.modules["answer"] = self._module  # dataclasses look up their module
        with self.running("the file"):
            exec(compile(source, str(path), "exec"), self._module.__dict__)  # noqa: S102 - an answer is code to run

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the answer that raises `WrongAnswer` on an exception, or if it changes its inputs."""
        function = getattr(self._module, name, None)
        if not callable(function):
            raise WrongAnswer("a function is missing", f"The file has no function `{name}`. The starter file has one.")

        def guarded(*arguments: Any, **named: Any) -> Any:
            before = [_copy(value) for value in (*arguments, *named.values())]
            with self.running(f"`{name}({_format_arguments(function, arguments, named)})`"):
                returned = function(*arguments, **named)
            if not all(map(_is_unchanged, before, (*arguments, *named.values()))):
                raise WrongAnswer(
                    "the input is changed",
                    f"`{name}` changes one of its input tensors. The caller still needs it: is there an in-place "
                    "operation, such as one whose name ends in `_`?",
                )
            return returned

        return guarded

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Run code of the learner inside; raise its exceptions as `WrongAnswer`. `what` describes the code."""
        try:
            yield
        except WrongAnswer:
            raise
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise WrongAnswer("not Python", f"Line {error.lineno} is not Python: {error.msg}: `{line}`") from error
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == str(self.path)]
            if isinstance(error, NotImplementedError) and own and own[-1] is frames[-1]:
                name = what.partition("(")[0].strip("`")
                raise WrongAnswer("nothing is there yet", f"Nothing is there yet: fill in {name}.") from error
            description = f"{type(error).__name__}: {error}".rstrip(": .")
            place = f" The error is in line {own[-1].lineno}: `{own[-1].line}`" if own else ""
            raise WrongAnswer("it raises", f"Running {what} raised {description}.{place}") from error


def expect_tensor(value: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Return the value if it is a tensor of this shape and dtype; else raise `WrongAnswer`."""
    if value is None:
        raise WrongAnswer(
            "it returns nothing", f"{name} is None: does every path through the function end in `return`?"
        )
    if not isinstance(value, Tensor):
        raise WrongAnswer("not a tensor", f"{name}: expected a tensor, got {type(value).__name__}.")
    if tuple(value.shape) != shape:
        raise WrongAnswer("wrong shape", f"{name}: expected shape {shape}, got {tuple(value.shape)}.")
    if dtype is not None and value.dtype != dtype:
        raise WrongAnswer("wrong dtype", f"{name}: expected {_name(dtype)}, as in the input, got {_dtype(value)}.")
    return value


def expect_tuple(value: Any, name: str, count: int) -> tuple[Any, ...]:
    """Return the value as a tuple if it has `count` elements; else raise `WrongAnswer`."""
    if value is None:
        raise WrongAnswer(
            "it returns nothing", f"{name} is None: does every path through the function end in `return`?"
        )
    if not isinstance(value, tuple | list) or len(value) != count:
        got = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
        raise WrongAnswer("not what was asked for", f"{name}: expected a tuple of {count} values, got {got}.")
    return tuple(value)


def expect_number(value: Any, name: str) -> float:
    """Return the value if it is a finite number or a tensor of one; else raise `WrongAnswer`."""
    if value is None:
        raise WrongAnswer(
            "it returns nothing", f"{name} is None: does every path through the function end in `return`?"
        )
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, Real) and not isinstance(value, bool | int):
        value = int(value) if isinstance(value, Integral) else float(value)  # fractions, and numbers of numpy
    if isinstance(value, bool) or not isinstance(value, int | float):
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise WrongAnswer("not a number", f"{name}: expected one number, got {got}.")
    if not math.isfinite(value):
        raise WrongAnswer("not a finite number", f"{name} is {value}. Print what goes into it, step by step.")
    return value


def expect_bool(value: Any, name: str) -> bool:
    """Return the value if it is a boolean of Python, torch or numpy; else raise `WrongAnswer`."""
    if isinstance(value, bool | np.bool_) or (
        isinstance(value, Tensor) and value.dtype == torch.bool and value.numel() == 1
    ):
        return bool(value)
    if value is None:
        raise WrongAnswer("it returns nothing", f"`{name}` returns None: does every path through it end in `return`?")
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise WrongAnswer("not a yes or no", f"`{name}`: expected one True or False, got {got}.")


def standard_normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return standard normal numbers that depend only on the seed; they are drawn in fp64 and then converted.

    >>> standard_normal(2, seed=0)
    tensor([ 1.5410, -0.2934])
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def first_mismatch(actual: Tensor, expected: Tensor, tolerance: float) -> tuple[int, ...] | None:
    """Return the index of the first entry that differs by more than the tolerance or is NaN, or None.

    >>> first_mismatch(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.5]]), 1e-6)
    (0, 1)
    """
    off = ~((actual.double() - expected.double()).abs() <= tolerance) & (actual.double() != expected.double())
    return tuple(off.nonzero()[0].tolist()) if off.any() else None


def reject_known(actual: Tensor, mistakes: Mapping[str, tuple[Tensor, str]], tolerance: float = 1e-4) -> None:
    """Raise `WrongAnswer` if the value is the result of a known mistake.

    Args:
        actual: What the answer returned.
        mistakes: By short name, the result of the mistake, and the message.
        tolerance: The largest difference.
    """
    for kind, (result, message) in mistakes.items():
        if actual.shape == result.shape and first_mismatch(actual, result, tolerance) is None:
            raise WrongAnswer(kind, message)


def format_index(index: Sequence[int]) -> str:
    """Format an index for a message.

    >>> format_index((3,)), format_index((0, 3))
    ('3', '(0, 3)')
    """
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"


def load_exercise(name: str) -> ModuleType:
    """Import the module of an exercise."""
    if name not in NAMES:
        raise SettingError(f"exercise: {unknown('exercise', name, NAMES)}")
    return import_module(f"attnscope.labs.exercises.{name}")


def task(name: str) -> str:
    """Return the task of an exercise as Markdown; the first line is its title."""
    return inspect.cleandoc(load_exercise(name).__doc__ or "")


def starter(name: str) -> str:
    """Return the starter file: the task in comments, and functions to fill in."""
    comments = "\n".join(f"# {line}".rstrip() for line in task(name).splitlines())
    return f"{HEADER}{name}\n#\n{comments}\n\n{load_exercise(name).STARTER.strip()}\n{FOOTER}"


def hint(source: str | Path, number: int = 1) -> str:
    """Return a hint for an exercise, given by name or by the file of an answer; later hints say more."""
    name = str(source) if str(source) in NAMES else exercise_name(Path(source))
    hints = load_exercise(name).HINTS
    if not 1 <= number <= len(hints):
        raise SettingError(f"hint: expected a number from 1 to {len(hints)} for {name}, got {number}")
    further = f"\nThe next hint: attnscope lab hint {name} {number + 1}" if number < len(hints) else ""
    return f"Hint {number} of {len(hints)}: {hints[number - 1]}{further}"


def solution(name: str) -> str:
    """Return our solution of an exercise. Show it only to those whose own answer is correct."""
    return load_exercise(name).SOLUTION.strip() + "\n"


def exercise_name(path: Path) -> str:
    """Return the name of the exercise in the first line of a file."""
    found = re.search(rf"^{HEADER.strip()}[ \t]*(\w+)", _read(path), re.MULTILINE)
    if found is None:
        raise SettingError(f"exercise: {path} names no exercise; expected the first line {HEADER}NAME")
    load_exercise(found[1])
    return found[1]


def check_answer(path: str | Path, name: str | None = None) -> Outcome:
    """Run the answer in a file in this process, without a timeout, and return the feedback.

    Args:
        path: The file.
        name: The exercise; by default, the file names it.
    """
    path = Path(path).resolve()
    name = name or exercise_name(path)
    exercise, source, printed = load_exercise(name), _read(path), _Printed()
    try:
        with (
            redirect_stdout(printed),
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            one_thread(),
            _hidden_labs(),
        ):
            warnings.simplefilter("ignore")  # the same in every process
            torch.manual_seed(0)
            exercise.check(Answer(path, source))
    except WrongAnswer as wrong:
        return Outcome(exercise=name, kind=wrong.kind, message=wrong.message, printed=printed.text)
    finally:
        sys.modules.pop("answer", None)
    return Outcome(exercise=name, message=getattr(exercise, "AFTERWARDS", ""), printed=printed.text)


@contextmanager
def _hidden_labs() -> Iterator[None]:
    """Make `attnscope.labs`, with the checks and solutions of all exercises, impossible to import."""
    package = sys.modules["attnscope"]
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if _is_of_labs(name)}
    guard = _NoLabs()
    sys.meta_path.insert(0, guard)
    labs = package.__dict__.pop("labs")
    try:
        yield
    finally:
        package.__dict__["labs"] = labs
        sys.meta_path.remove(guard)
        sys.modules.update(hidden)


class _NoLabs(MetaPathFinder):
    """Refuses to import the labs."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if _is_of_labs(fullname):
            raise ImportError(f"{fullname} cannot be imported by an answer to an exercise", name=fullname)


def _is_of_labs(name: str) -> bool:
    return name == "attnscope.labs" or name.startswith("attnscope.labs.")


class _Printed(io.TextIOBase):
    """Collects the beginning of the output of an answer, up to a limit."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, /) -> int:
        self.text += text[: MAX_PRINTED_CHARACTERS - len(self.text)]
        return len(text)


def _read(path: Path) -> str:
    if not path.is_file():
        raise SettingError(f"exercise: {path} not found; `attnscope lab exercise NAME FILE` writes a starter file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"exercise: {path} is not UTF-8 text ({error}); save it as UTF-8") from error


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _is_unchanged(before: Any, after: Any) -> bool:
    if not isinstance(before, Tensor) or before.numel() == 0:
        return True
    return before.shape == after.shape and torch.equal(before.nan_to_num(), after.detach().nan_to_num())


def _format_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Format the arguments of a call, with the parameter names of the learner if they match."""
    try:
        bound = inspect.signature(function).bind(*arguments, **named).arguments.items()
    except (TypeError, ValueError):
        bound = [*((f"argument {place}", value) for place, value in enumerate(arguments, 1)), *named.items()]
    return ", ".join(f"{name}: {_short(value)}" for name, value in bound)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{_dtype(value)} {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _dtype(value: Tensor) -> str:
    return _name(value.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
