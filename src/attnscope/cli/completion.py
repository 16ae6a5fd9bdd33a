"""`attnscope completion SHELL`: print the completion script of click for a shell.

The script runs `attnscope` with `_ATTNSCOPE_COMPLETE` set, so it always completes the installed version.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from attnscope.cli.commands import Name, Options, argument, command

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ATTNSCOPE_COMPLETE"
INSTALL = """\
To enable it in every new shell:
  bash    echo 'eval "$(attnscope completion bash)"' >> ~/.bashrc
  zsh     echo 'eval "$(attnscope completion zsh)"' >> ~/.zshrc
  fish    attnscope completion fish > ~/.config/fish/completions/attnscope.fish
  (in zsh, add the line after the one that calls compinit)"""


@command(
    "completion",
    about="print a script that completes commands in your shell",
    description="Print a script that completes commands, options and names when you press Tab.",
    notes=INSTALL,
    examples=['eval "$(attnscope completion bash)"'],
)
@argument("shell", type=Name("shell", SHELLS), about=", ".join(SHELLS))
def completion(options: Options) -> None:
    """Print the script."""
    completion_class = get_completion_class(options.shell)
    assert completion_class is not None, options.shell
    print(completion_class(click.get_current_context().find_root().command, {}, "attnscope", VARIABLE).source())
