"""The report of `attnscope doctor`: sections on a terminal, lines of name, tab and value elsewhere."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.doctor.installation import extras, installation, machine
from attnscope.doctor.kernels import kernels
from attnscope.doctor.limits import limits

WIDTH = 28  # characters of a name
SECTIONS = {
    "installed": installation,
    "extras": extras,
    "threads and devices": machine,
    "attention kernels, observed in small calls": kernels,
    "recording limits, estimated": limits,
}


def collect() -> dict[str, dict[str, str]]:
    """Return the report as values by section and name."""
    return {section.__name__: section() for section in SECTIONS.values()}


def show(console: Console) -> None:
    """Print all sections, each as soon as it is ready.

    Args:
        console: Where to print.
    """
    for number, (title, section) in enumerate(SECTIONS.items()):
        facts = section()
        if not console.is_terminal:
            console.file.writelines(f"{name}\t{value}\n" for name, value in facts.items())
            continue
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2), pad_edge=True)
        table.add_column(min_width=WIDTH, no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            table.add_row(Text(name), Text(value))  # [models] is a name here, not markup
        console.print(Text("\n" * bool(number) + title, style="bold"))
        console.print(table)
