"""What AttnScope promises about numbers, as contracts that can be checked on any device.

`CONTRACTS` lists them all; `attnscope doctor --verify` and `attnscope bench device` run them.
"""

from attnscope.contracts import attend, matrix, recording
from attnscope.contracts.contract import COLUMNS, Check, Contract, Verdict, verify_contract, verify_contracts
from attnscope.contracts.devices import describe_device, find_devices

CONTRACTS: tuple[Contract, ...] = (*attend.CONTRACTS, *matrix.CONTRACTS, *recording.CONTRACTS)

__all__ = [
    "COLUMNS",
    "CONTRACTS",
    "Check",
    "Contract",
    "Verdict",
    "describe_device",
    "find_devices",
    "verify_contract",
    "verify_contracts",
]
