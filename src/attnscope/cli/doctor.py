"""`attnscope doctor`: report the installation; --verify tests attention on this machine."""

from __future__ import annotations

from attnscope.cli.commands import Options, command, option
from attnscope.cli.json_output import print_json
from attnscope.errors import AttnScopeError


@command(
    "doctor",
    about="show versions, kernels, and how many tokens fit in memory",
    description="Show versions, threads and devices, installed extras, the kernels that attention runs on here, and "
    "how many tokens can be recorded in the available memory.",
    examples=["attnscope doctor", "attnscope doctor --verify", "attnscope doctor --json"],
)
@option("--verify", is_flag=True, about="also check attention against a dense reference on your devices")
@option("--json", is_flag=True, about="print JSON")
def doctor(options: Options) -> None:
    """Print the report."""
    from rich.console import Console

    with Console(stderr=True).status("loading torch"):
        from attnscope import doctor

    is_verified = None
    if options.json:
        facts = doctor.collect()
        if options.verify:
            is_verified = doctor.verify(Console(stderr=True))
        print_json(**facts, verified=is_verified)
    else:
        doctor.show(Console())
        if options.verify:
            is_verified = doctor.verify(Console())
    if is_verified is False:
        raise AttnScopeError(
            "doctor: attention differs from the dense reference on this machine, as listed above; please report it"
        )
