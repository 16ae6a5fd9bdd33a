"""The contracts hold on the stand-ins for GPUs, and fail there by name where a kernel is wrong.

Stand-ins have no autograd, and models cannot be moved to them, so gradients and recording are left out.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from attnscope.attention import kernels
from attnscope.contracts import attend, matrix, verify_contract
from attnscope.contracts.contract import Contract
from attnscope.doctor import verification, verify
from tests.devices.standin import Standins

FORWARD = [contract for contract in attend.CONTRACTS if contract.name.startswith("output")]
DEVICES = [torch.device("cuda", 0), torch.device("mps", 0)]


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("contract", [*FORWARD, *matrix.CONTRACTS], ids=lambda contract: contract.name)
def test_a_contract_holds_on_a_stand_in(contract: Contract, device: torch.device) -> None:
    with torch.no_grad(), Standins():
        verdict = verify_contract(contract, device)
    if verdict is None:
        assert (contract.name, device.type) == ("output of attend, float64", "mps")
    else:
        assert verdict.faults == []


def test_a_wrong_kernel_is_named_with_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.flash_attention

    def wrong(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output, lse = right(query, *args, **kwargs)
        return (output * 1.0001 if query.device.type == "cuda" else output), lse

    monkeypatch.setattr(kernels, "flash_attention", wrong)
    monkeypatch.setattr(verification, "CONTRACTS", [one for one in FORWARD if one.name.endswith("float32")])
    monkeypatch.setattr(verification, "find_devices", lambda: [torch.device("cpu"), DEVICES[0]])
    pipe = io.StringIO()
    with torch.no_grad(), Standins():
        assert not verify(Console(file=pipe))
    lines = pipe.getvalue().splitlines()
    assert [line.split("\t")[0] + " " + line.split("\t")[5] for line in lines[:2]] == ["cpu holds", "cuda:0 FAILS"]
    assert lines[2:]
    assert all(line.startswith("output of attend, float32 on cuda:0: ") for line in lines[2:])
