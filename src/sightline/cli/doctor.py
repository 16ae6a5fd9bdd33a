"""`sightline doctor`, and with --verify the contracts on this machine."""

import argparse

from sightline.errors import SightlineError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("doctor", help="show versions, devices and which extras are installed")
    parser.add_argument("--verify", action="store_true", help="run the contracts of attention on your devices")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Print what is found."""
    from rich.console import Console

    from sightline import doctor

    doctor.show(Console())
    if options.verify and not doctor.verify(Console()):
        raise SightlineError(
            "doctor: attention breaks its contracts on this machine, as listed above; please report it"
        )
