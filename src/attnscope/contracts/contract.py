"""A contract: a named promise that can be checked on any device, in several cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from attnscope.contracts.tolerances import Deviation, find_broken

COLUMNS = ("device", "contract", "cases", "worst error", "bound", "verdict")


class Check(NamedTuple):
    """One case of a contract."""

    name: str
    run: Callable[[], list[Deviation]]


class Contract(NamedTuple):
    """A promise of the library; without checks for a device, it does not apply there."""

    name: str
    checks: Callable[[torch.device], Iterable[Check]]


@dataclass(frozen=True)
class Verdict:
    """Whether a contract holds on a device."""

    device: torch.device
    contract: str
    num_checks: int
    worst: Deviation
    """The largest deviation, as a share of its bound."""
    faults: list[str] = field(default_factory=list)
    """What is wrong, one line per case; empty if the contract holds."""

    @property
    def holds(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    @property
    def cells(self) -> tuple[str, ...]:
        """The verdict as a row of a table with the columns `COLUMNS`."""
        error, bound = (f"{number:.2g}" for number in self.worst[1:])
        verdict = "holds" if self.holds else "FAILS"
        return str(self.device), self.contract, str(self.num_checks), error, bound, verdict


def verify_contract(contract: Contract, device: torch.device) -> Verdict | None:
    """Run all checks of a contract; None if it does not apply to the device. An error in a check is a fault."""
    checks, found, faults = list(contract.checks(device)), [], []
    for check in checks:
        try:
            deviations = check.run()
        except Exception as error:
            found.append(Deviation("result", math.inf, 0.0))
            faults.append(f"{check.name}: {type(error).__name__}: {error}")
            continue
        found += deviations
        if broken := find_broken(deviations):
            faults.append(f"{check.name}: {'; '.join(broken)}")
    if not checks:
        return None
    return Verdict(device, contract.name, len(checks), max(found, key=lambda deviation: deviation.share), faults)


def verify_contracts(
    contracts: Iterable[Contract], devices: Iterable[torch.device], step: Callable[[str], object] = lambda _: None
) -> Iterator[Verdict]:
    """Yield a verdict for each contract on each device to which it applies, as soon as it is known.

    Args:
        contracts: The contracts.
        devices: The devices.
        step: Called with a description of what comes next.
    """
    contracts = list(contracts)
    for device in devices:
        for contract in contracts:
            step(f"{contract.name} on {device}")
            verdict = verify_contract(contract, device)
            if verdict is not None:
                yield verdict
