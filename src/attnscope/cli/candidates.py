"""What may stand next on a command line: what a shell offers when somebody presses Tab.

In: the parser, and the words so far. Out: words with what they mean; none where a file or any other text is wanted.
Does not know: shells. It imports nothing that takes long, as somebody is waiting for it.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
NAMES = {
    "bench": ("bench/__init__.py", "NAMES"),
    "lab run": ("labs/catalogue.py", "SECONDS"),
    "lab notebook": ("labs/catalogue.py", "SECONDS"),
    "lab exercise": ("labs/exercises/__init__.py", "NAMES"),
    "lab hint": ("labs/exercises/__init__.py", "NAMES"),
}
"""Commands whose first argument is a name, and where all names stand; those files take long to import."""

Candidates = dict[str, str]


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> Candidates:
    """The words that may stand in the place of the last one, and begin like it."""
    *before, current = words or [""]
    before = [word for word in before if word != "="]  # bash takes --size=small for three words
    current = "" if current == "=" else current
    option, equals, begun = current.partition("=")
    place = Place(parser)
    for word in [*before, option] if equals else before:
        place.take(word)
    found = place.offered(begun if equals else current)
    return {f"{option}={word}" if equals else word: about for word, about in found.items()}


class Place:
    """Where one stands on a command line after some words."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.path = ""
        self.positionals = 0
        self.waiting: argparse.Action | None = None  # the option whose value comes next
        self.given: set[argparse.Action] = set()
        self._parsers = {"": parser} | dict(inner_parsers(parser))

    def take(self, word: str) -> None:
        """Go on by a word."""
        option = next((action for action in self._actions if word in action.option_strings), None)
        if option is not None:
            self.given.add(option)
            self.waiting = option if option.nargs != 0 else None
        elif self.waiting is not None:
            self.waiting = None if self.waiting.nargs is None else self.waiting
        elif word in self._commands():
            self.path, self.positionals = f"{self.path} {word}".lstrip(), 0
        else:
            self.positionals += 1

    def offered(self, begun: str) -> Candidates:
        """All that begins so, in the order of the help."""
        if begun.startswith("-"):
            found = self._options()
        elif self.waiting is not None:
            found = dict.fromkeys(map(str, self.waiting.choices or ()), "")
        else:
            found = self._names() | self._commands()
        return {word: about for word, about in found.items() if word.startswith(begun)}

    @property
    def _actions(self) -> list[argparse.Action]:
        return self._parsers[self.path]._actions

    def _options(self) -> Candidates:
        return {
            option: plain(action.help)
            for action in self._actions
            if action not in self.given or isinstance(action, argparse._AppendAction)
            for option in action.option_strings
            if option.startswith("--")
        }

    def _commands(self) -> Candidates:
        """The commands that may come here, as long as nothing else has."""
        split = {name: name.rpartition(" ") for name in self._parsers if name}
        return {
            last: plain(self._parsers[name].description)
            for name, (above, _, last) in split.items()
            if above == self.path and not self.positionals
        }

    def _names(self) -> Candidates:
        """Values of the positional argument that comes next, where they are known."""
        actions = [action for action in self._actions if not action.option_strings]
        if self.positionals >= len(actions) or isinstance(actions[self.positionals], argparse._SubParsersAction):
            return {}
        where = NAMES.get(self.path) if self.positionals == 0 else None
        known = actions[self.positionals].choices or (() if where is None else names_in(*where))
        return dict.fromkeys(map(str, known), "")


def inner_parsers(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and its own commands, by all their words; `survey show` is one of two words to begin with."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield f"{path}{name}", inner
                yield from inner_parsers(inner, f"{path}{name} ")


def plain(text: str | None) -> str:
    """The first sentence of a help, on one line.

    >>> plain("Train a model. The same command goes on.")
    'Train a model'
    """
    return " ".join((text or "").replace("%%", "%").split()).partition(". ")[0].removesuffix(".")


def names_in(file: str, variable: str) -> list[str]:
    """The words of a tuple, or the keys of a dictionary, that stands in a file of the package.

    >>> names_in("bench/__init__.py", "NAMES")[:2]
    ['attention', 'matrix']
    """
    for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == variable for target in node.targets):
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{file} has no {variable}")
