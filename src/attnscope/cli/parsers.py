"""How a command is added to the parser: help of one form, with examples at its end.

In: the words of a command. Out: its parser. Does not know: what commands do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Help(argparse.HelpFormatter):
    """Help with a short usage, that wraps a text of one line, and leaves a text that has lines of its own as it is."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """A usage without the options that can be left out: they are all listed below it."""
        needed = [action for action in actions if action.required or not action.option_strings]
        super().add_usage(usage, needed, (), prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return indent + text.replace("\n", "\n" + indent) if "\n" in text else super()._fill_text(text, width, indent)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    *,
    examples: Sequence[str],
    about: str | None = None,
    description: str | None = None,
    below: str = "",
    **settings: Any,
) -> argparse.ArgumentParser:
    """The parser of a command; `about` is its line in the list of commands, and `below` comes before its examples.

    Without a description, that line says all there is to say.
    """
    if about is not None:
        settings["help"] = about  # without it, argparse leaves the command out of lists
    if description is None and about is not None:
        description = f"{about[0].upper()}{about[1:]}."
    epilog = "\n".join([*([below, ""] if below else []), *example_lines(examples)])
    return commands.add_parser(name, description=description, epilog=epilog, formatter_class=Help, **settings)


def example_lines(examples: Sequence[str]) -> list[str]:
    """Examples as the end of a help.

    >>> example_lines(["attnscope doctor"])
    ['example:', '  attnscope doctor']
    """
    return ["example:" if len(examples) == 1 else "examples:", *(f"  {example}" for example in examples)]
