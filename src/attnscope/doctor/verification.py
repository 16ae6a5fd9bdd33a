"""Verifies the contracts of the library on the user's devices: `attnscope doctor --verify`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from attnscope.contracts import COLUMNS, CONTRACTS, find_devices, verify_contracts
from attnscope.progress import show_status


def verify(console: Console) -> bool:
    """Verify all contracts on all devices, and print one line per device and contract.

    Errors are those of the worst case, compared with its bound. Each fault is printed with its case.

    Args:
        console: Where to print.

    Returns:
        Whether all contracts hold.
    """
    table, verdicts = Table(*COLUMNS), []
    with show_status("verifying") as step:
        for verdict in verify_contracts(CONTRACTS, find_devices(), step):
            verdicts.append(verdict)
            table.add_row(*verdict.cells)
            if not console.is_terminal:
                console.file.write("\t".join(verdict.cells) + "\n")
                console.file.flush()
    if console.is_terminal:
        console.print(table)
    for verdict in verdicts:
        for fault in verdict.faults:
            console.print(f"{verdict.contract} on {verdict.device}: {fault}", markup=False, soft_wrap=True)
    return all(verdict.holds for verdict in verdicts)
