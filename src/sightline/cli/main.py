"""The `sightline` command: one file beside this one for each of its subcommands.

Each handler imports what it needs when it is called, so that `sightline --help` is quick, and may return an exit code.
What Sightline raises on purpose is printed as one line; anything else is a bug and keeps its traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from sightline.cli import bench, doctor, explore, generate, heads, lab, look, survey, train
from sightline.errors import SightlineError
from sightline.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = build_parser().parse_args(in_words(sys.argv[1:] if arguments is None else arguments))
    try:
        code = options.handler(options)
        sys.stdout.flush()  # while a reader who has left can still be told from a mistake
    except SightlineError as error:
        print(f"sightline: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130  # as a shell counts it
    except BrokenPipeError:
        # Whoever read our output has seen enough, as in `sightline ... | head`. Python would complain once more when
        # it closes standard output, so that is pointed to where nobody listens.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code or 0


def in_words(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the name of a command that has two words as one of them.

    >>> in_words(["survey", "show", "folder"]), in_words(["survey", "./show", "text.txt"])
    (['survey show', 'folder'], ['survey', './show', 'text.txt'])
    """
    first = " ".join(arguments[:2])
    return [first, *arguments[2:]] if first in ("survey show", "survey diff") else list(arguments)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="sightline", description="Attention you can see, at any length.")
    parser.add_argument("--version", action="version", version=f"sightline {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (look, explore, generate, heads, survey, train, lab, bench, doctor):
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
