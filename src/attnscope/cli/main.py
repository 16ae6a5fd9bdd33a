"""The `attnscope` command, with one module per subcommand.

To add a command, write a module `NAME.py` with a click command `NAME`, and add its name to `SECTIONS`. A handler
imports heavy modules when it is called, so that help is fast, and may return an exit code. An `AttnScopeError` is
printed as one line; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from traceback import walk_tb

import click
from click.shell_completion import shell_complete

from attnscope.cli.commands import OPTIONS, SETTINGS, Group, Option, format_error
from attnscope.cli.completion import VARIABLE
from attnscope.errors import AttnScopeError
from attnscope.version import __version__

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_FAILED = (errno.EIO, errno.ESTALE)
REMEDIES = dict.fromkeys(NOT_WRITABLE, "give another path, or free some space") | dict.fromkeys(
    DISK_FAILED, "check the disk, and run the same command again"
)
"""What to do about error numbers that are not bugs: missing permission or space, and disks that fail."""
SECTIONS = {
    "Inspect attention": ("look", "explore", "publish", "picture"),
    "Analyze heads": ("heads", "survey", "fact", "cache"),
    "Run and train models": ("download", "generate", "train", "watch"),
    "Learn": ("lab",),
    "This installation": ("doctor", "bench", "completion"),
}
EXAMPLES = (
    "attnscope explore                        # an example that needs no model",
    "attnscope download smollm2-135m          # a small trained model",
    "attnscope look ./my-model report.txt     # a folder, or a GGUF file, or",
    "attnscope look HuggingFaceTB/SmolLM2-135M-Instruct    # a name on the hub",
    "attnscope heads --help                   # more about one command",
)


class Root(Group):
    """The root command, which imports the module of a subcommand on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return getattr(import_module(f"attnscope.cli.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, with one line per command."""
        for title, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(f"{name:10}", command.short_help or "") for name, command in found if command])


def show_version(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
    """Print the version and exit."""
    if is_requested and not ctx.resilient_parsing:
        click.echo(f"attnscope {__version__}")
        ctx.exit()


cli = Root(
    "attnscope",
    help="Inspect attention in PyTorch transformers at any sequence length.",
    context_settings=SETTINGS,
    params=[
        Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=show_version,
            help="Show the version and exit.",
            section=OPTIONS,
        )
    ],
)
cli.examples = EXAMPLES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None and (instruction := os.environ.get(VARIABLE)):
        return shell_complete(cli, {}, "attnscope", VARIABLE, instruction)
    try:
        with one_line_for_threads():
            code = run(words)
        sys.stdout.flush()  # so that a closed pipe is noticed here
    except click.ClickException as error:
        print(format_error(error), file=sys.stderr)
        return error.exit_code
    except AttnScopeError as error:
        print(f"attnscope: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130  # 128 + SIGINT, the convention of shells
    except BrokenPipeError:
        discard_output()  # as in `attnscope ... | head`
        return 141
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        if error.filename is None and is_of_output(error):
            discard_output()
            where = "standard output: "
        print(f"attnscope: {where}{error.strerror}; {REMEDIES[error.errno]}", file=sys.stderr)
        return 2
    return code


def run(words: list[str]) -> int:
    """Parse and run a command line; return the exit code."""
    try:
        with cli.make_context("attnscope", words) as context:
            return cli.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code


@contextmanager
def one_line_for_threads() -> Iterator[None]:
    """Print one line where a thread of a library, such as TensorBoard's, fails because of the disk."""
    before = threading.excepthook

    def report(found: threading.ExceptHookArgs) -> None:
        error = found.exc_value
        if isinstance(error, OSError) and error.errno in REMEDIES:
            print(f"a thread in the background failed: {error.strerror}", file=sys.stderr)
        else:
            before(found)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = before


def is_of_output(error: OSError) -> bool:
    """Whether an error without a path comes from printing, not from a file that a library writes."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith(("attnscope.cli", "click", "rich", "__main__"))


def discard_output() -> None:
    """Redirect standard output to /dev/null, because Python raises again when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
