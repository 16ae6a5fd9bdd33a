"""What AttnScope promises about numbers, as contracts that can be checked on any device.

`CONTRACTS` lists them all; `attnscope doctor --verify` and `attnscope bench device` run them.
"""

from attnscope.contracts import attend, kernels, matrix, recording
from attnscope.contracts.contract import COLUMNS as COLUMNS
from attnscope.contracts.contract import Check as Check
from attnscope.contracts.contract import Contract as Contract
from attnscope.contracts.contract import Verdict as Verdict
from attnscope.contracts.contract import verify_contract as verify_contract
from attnscope.contracts.contract import verify_contracts as verify_contracts
from attnscope.contracts.devices import describe_device as describe_device
from attnscope.contracts.devices import find_devices as find_devices

CONTRACTS: tuple[Contract, ...] = (
    *attend.CONTRACTS,
    *matrix.CONTRACTS,
    *recording.CONTRACTS,
    *kernels.CONTRACTS,
)
