"""Parse command lines by the real `main`, and run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from unittest.mock import patch

import click

from attnscope.cli.commands import Command, Group
from attnscope.cli.main import cli, main


def parsed(arguments: list[str]) -> click.Context:
    """The context of the command that a command line would run, with all parameters in it."""
    found: list[click.Context] = []
    with patch.object(Command, "invoke", lambda self, context: found.append(context)):
        errors = StringIO()
        with redirect_stderr(errors), redirect_stdout(StringIO()):
            code = main(arguments)
    if code:
        raise ValueError(errors.getvalue())
    return found[0] if found else click.Context(cli)  # --help and bare groups run nothing


def all_commands(group: Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, from the top."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, Group):
            yield from all_commands(command, f"{path} {name}".lstrip())
        else:
            yield f"{path} {name}".lstrip(), command


@contextmanager
def context_of(path: str) -> Iterator[click.Context]:
    """The context of a command, with its whole path, as help is printed in it."""
    with click.Context(cli, info_name="attnscope") as context:
        command: click.Command = cli
        for word in path.split():
            assert isinstance(command, Group)
            found = command.get_command(context, word)
            assert found is not None
            command, context = found, click.Context(found, info_name=word, parent=context)
        yield context
