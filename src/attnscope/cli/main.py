"""The `attnscope` command: one file beside this one for each of its subcommands.

Each handler imports what it needs when it is called, so that `attnscope --help` is quick, and may return an exit code.
What AttnScope raises on purpose is printed as one line; anything else is a bug and keeps its traceback.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from attnscope.cli import bench, completion, doctor, explore, generate, heads, lab, look, survey, train
from attnscope.cli.parsers import Help, example_lines
from attnscope.errors import AttnScopeError
from attnscope.version import __version__

REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""What a system says when a place is not ours or has no room, which is no bug of anybody."""
GROUPS = {
    "see what a model attends to": (look, explore),
    "know what its heads do": (heads, survey),
    "run and train models": (generate, train),
    "learn": (lab,),
    "this installation": (doctor, bench, completion),
}
EXAMPLES = (
    "attnscope explore                        # an example that needs no model",
    "attnscope look ./my-model report.txt     # a folder, or a GGUF file, or",
    "attnscope look HuggingFaceTB/SmolLM2-135M-Instruct    # a name on the hub",
    "attnscope heads --help                   # more about one command",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser()
    if tuple(arguments[:2]) == ("completion", "candidates"):  # whatever follows is not for this parser to judge
        completion.show_candidates(parser, arguments[2:])
        return 0
    options = parser.parse_args(in_words(arguments))
    try:
        code = options.handler(options)
        sys.stdout.flush()  # while a reader who has left can still be told from a mistake
    except AttnScopeError as error:
        print(f"attnscope: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130  # as a shell counts it
    except BrokenPipeError:
        leave_output()  # whoever read it has seen enough, as in `attnscope ... | head`
        return 141
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        if error.filename is None:  # it was standard output that could not be written
            leave_output()
        place = "standard output" if error.filename is None else error.filename
        print(f"attnscope: {place}: {error.strerror}; give another place, or make room there", file=sys.stderr)
        return 2
    return code or 0


def leave_output() -> None:
    """Point standard output to where nobody listens, as Python would complain once more when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_words(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the name of a command that has two words as one of them.

    >>> in_words(["survey", "show", "folder"]), in_words(["survey", "./show", "text.txt"])
    (['survey show', 'folder'], ['survey', './show', 'text.txt'])
    """
    first = " ".join(arguments[:2])
    return [first, *arguments[2:]] if first in ("survey show", "survey diff") else list(arguments)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="attnscope",
        usage="attnscope COMMAND ...",
        epilog="\n".join(example_lines(EXAMPLES)),
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"attnscope {__version__}")
    commands = parser.add_subparsers(prog="attnscope", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    lines = ["Attention you can see, at any length."]
    for title, group in GROUPS.items():
        listed = len(commands._choices_actions)
        for command in group:
            command.add(commands)
        lines += ["", f"{title}:", *(f"  {line.dest:12}{line.help}" for line in commands._choices_actions[listed:])]
    parser.description = "\n".join(lines)
    return parser


if __name__ == "__main__":
    sys.exit(main())
