"""`attnscope completion SHELL`: what lets a shell complete commands and options, as text for that shell to read.

Each of the scripts asks `attnscope completion candidates WORD ...` when somebody presses Tab, so that it never grows
older than the command. It prints a line for each word, with what it means after a tab; nothing means a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnscope.cli.candidates import candidates
from attnscope.cli.parsers import add_command

BASH = """\
_attnscope() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _attnscope attnscope
"""

ZSH = """\
#compdef attnscope
_attnscope() {
    local -a found
    found=("${(@f)$("${words[1]}" completion candidates "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found/$'\\t'/:})
    if (( ${#found} )); then
        _describe 'attnscope' found
    else
        _files
    fi
}
if [[ $funcstack[1] == _attnscope ]]; then
    _attnscope "$@"
else
    compdef _attnscope attnscope
fi
"""

FISH = """\
function __attnscope_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l found ($program completion candidates $words "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c attnscope -f -a '(__attnscope_candidates)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
HOW = """\
to have it in every new shell:
  bash    echo 'eval "$(attnscope completion bash)"' >> ~/.bashrc
  zsh     echo 'eval "$(attnscope completion zsh)"' >> ~/.zshrc
  fish    attnscope completion fish > ~/.config/fish/completions/attnscope.fish
  (in zsh the line comes after the one that calls compinit)"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "completion",
        about="let your shell complete commands and options",
        description="Print what lets a shell complete commands and options when you press Tab.",
        below=HOW,
        examples=['eval "$(attnscope completion bash)"'],
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS))
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    print(SCRIPTS[options.shell], end="")


def show_candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Print what may stand in the place of the last word, and what it means."""
    for word, about in candidates(parser, words).items():
        print(f"{word}\t{about}" if about else word)
