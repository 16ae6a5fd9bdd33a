"""Verifies the contracts of `attend` on the user's devices: `attnscope doctor --verify`.

Each check compares `attend`, with its default backend, with dense code in fp64 on the CPU, in output, lse
and gradients, including rows without keys. It is a short form of the test suite, for devices that the suite does not
cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Bias,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    ScoreMod,
    Sinks,
    Softcap,
    Window,
    attend,
    explain,
    from_bool,
)

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 67, 131, 16
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Check(NamedTuple):
    """The result of one contract on one device and dtype; `fault` is empty if it holds."""

    device: torch.device
    dtype: torch.dtype
    backend: str
    contract: str
    fault: str


def verify(console: Console) -> bool:
    """Verify all contracts on all devices, and print one line per device, dtype and backend.

    Returns:
        Whether all contracts hold.
    """
    found = list(checks())
    table = Table("device", "dtype", "backend", "contracts that hold")
    for device, dtype, backend in dict.fromkeys(check[:3] for check in found):
        some = [check for check in found if check[:3] == (device, dtype, backend)]
        passed = f"{sum(not check.fault for check in some)} of {len(some)}"
        row = (str(device), str(dtype)[6:], backend, passed)
        table.add_row(*row)
        if not console.is_terminal:
            console.file.write("\t".join(row) + "\n")
    if console.is_terminal:
        console.print(table)
    faults = [check for check in found if check.fault]
    for check in faults:
        console.print(
            f"{check.contract} on {check.device} in {check.dtype}: {check.fault}", markup=False, soft_wrap=True
        )
    return not faults


def checks() -> Iterator[Check]:
    """Check every contract on every available device, in every dtype that the device supports."""
    accelerator = torch.accelerator.current_accelerator()
    for device in [torch.device("cpu")] + ([] if accelerator is None else [accelerator]):
        for dtype in DTYPES:
            if dtype == torch.float64 and device.type == "mps":
                continue  # Apple's GPUs have no fp64
            for contract, (mask, score) in _contracts().items():
                yield _check(device, dtype, contract, mask, score)


def _contracts() -> dict[str, tuple[Mask, ScoreMod | None]]:
    keep = torch.rand(BATCH, KEYS, generator=torch.Generator().manual_seed(1)) > 0.5
    keep[:, :80] = False  # the first causal rows see no key at all
    heads = torch.linspace(-1.0, 1.0, HEADS)
    return {
        "full": (Full(), None),
        "causal, the last query sees all keys": (Causal(), None),
        "window of w keys with the token itself": (Window(20), None),
        "two-sided window": (Window(before=9, after=9), None),
        "prefix": (Causal() | Prefix([30, 90]), None),
        "documents": (Causal() & Documents(torch.arange(KEYS) // 30), None),
        "padding": (Padding([KEYS, 50]), None),
        "rows without keys": (Causal() & Padding(keep=keep), None),
        "any booleans": (from_bool(drop=torch.arange(QUERIES * KEYS).reshape(QUERIES, KEYS) % 3 == 0), None),
        "softcap": (Causal(), Softcap(2.0)),
        "slopes and bias": (Causal(), ALiBi(HEADS) + Bias(heads[:, None, None])),
        "sinks": (Window(40), Sinks(heads)),
    }


def _check(device: torch.device, dtype: torch.dtype, contract: str, mask: Mask, score: ScoreMod | None) -> Check:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, generator=generator).to(dtype)
    key, value = (torch.randn(BATCH, KEY_HEADS, KEYS, DIM, generator=generator).to(dtype) for _ in range(2))
    tensors = (query, key, value)
    backend = explain(*(tensor.to(device) for tensor in tensors), mask=mask, score_mod=score).backend
    try:
        got = _run(tensors, device, dtype, mask, score, "auto")
        truth = _run(tensors, torch.device("cpu"), torch.float64, mask, score, "reference")
        plain = _run(tensors, torch.device("cpu"), dtype, mask, score, "reference")
        fault = _fault(got, truth, plain, dtype)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return Check(device, dtype, backend, contract, fault)


def _run(tensors: tuple[Tensor, ...], device, dtype, mask, score, backend) -> dict[str, Tensor]:
    query, key, value = (tensor.detach().clone().to(device, dtype).requires_grad_() for tensor in tensors)
    output, lse = attend(query, key, value, mask=mask, score_mod=score, backend=backend, return_lse=True)
    (output.square().sum() + lse[lse > -math.inf].sum().to(output.dtype)).backward()
    found = {"output": output, "lse": lse, "query gradient": query.grad}
    found |= {"key gradient": key.grad, "value gradient": value.grad}
    return {name: tensor.detach().cpu().double() for name, tensor in found.items() if tensor is not None}


def _fault(got: dict[str, Tensor], truth: dict[str, Tensor], plain: dict[str, Tensor], dtype: torch.dtype) -> str:
    """Describe what is wrong: misplaced -inf or NaN, or more than 4x the error of dense code plus four roundings."""
    for name, right in truth.items():
        finite = right > -math.inf
        if not torch.equal(got[name] > -math.inf, finite) or got[name].isnan().any():
            return f"{name} has infinite or NaN entries in wrong places"
        error = (got[name] - right)[finite].abs().max()
        rounding = max(4 * torch.finfo(dtype).eps, 1e-12)  # fp64 has no better arithmetic to be compared with
        bound = 4 * (plain[name] - right)[finite].abs().max() + rounding * right[finite].abs().max()
        if not error <= bound:
            return f"{name} has an error of {error:.2g}, expected at most {bound:.2g}"
    return ""
