"""`attnscope completion SHELL`: the script that makes a shell complete commands, options and names, made by click.

The script runs `attnscope` with `_ATTNSCOPE_COMPLETE` set when somebody presses Tab, so that it never gets older than
the command.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from attnscope.cli.commands import Name, Options, argument, command

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ATTNSCOPE_COMPLETE"
INSTALL = """\
To have it in every new shell:
  bash    echo 'eval "$(attnscope completion bash)"' >> ~/.bashrc
  zsh     echo 'eval "$(attnscope completion zsh)"' >> ~/.zshrc
  fish    attnscope completion fish > ~/.config/fish/completions/attnscope.fish
  (in zsh the line comes after the one that calls compinit)"""


@command(
    "completion",
    about="print a script that completes commands in your shell",
    description="Print a script with which a shell completes commands, options and names when you press Tab.",
    below=INSTALL,
    examples=['eval "$(attnscope completion bash)"'],
)
@argument("shell", type=Name("shell", SHELLS), about=", ".join(SHELLS))
def completion(options: Options) -> None:
    """Print the script."""
    made = get_completion_class(options.shell)
    assert made is not None, options.shell
    print(made(click.get_current_context().find_root().command, {}, "attnscope", VARIABLE).source())
