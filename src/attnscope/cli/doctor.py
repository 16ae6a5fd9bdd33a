"""`attnscope doctor`, and with --verify the contracts on this machine."""

import argparse

from attnscope.cli.parsers import add_command
from attnscope.errors import AttnScopeError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "doctor",
        about="show versions, kernels, and how long a text fits into memory",
        description="Show versions, threads and devices, which extras are installed, which kernels attention really "
        "takes here, and how many tokens can be recorded in the memory that is left.",
        examples=["attnscope doctor", "attnscope doctor --verify"],
    )
    parser.add_argument("--verify", action="store_true", help="also run the contracts of attention on your devices")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Print what is found."""
    from rich.console import Console

    with Console(stderr=True).status("loading torch"):
        from attnscope import doctor

    doctor.show(Console())
    if options.verify and not doctor.verify(Console()):
        raise AttnScopeError(
            "doctor: attention breaks its contracts on this machine, as listed above; please report it"
        )
