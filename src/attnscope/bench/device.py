"""Attention on one device: the cost of each operation compared with torch's attention, and the contracts.

The device is the first accelerator, or the CPU if there is none. `CUDA_VISIBLE_DEVICES` selects another GPU.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import Causal, attend
from attnscope.bench import Size
from attnscope.bench.report import Table, duration, usual_conditions
from attnscope.bench.timing import race
from attnscope.contracts import COLUMNS, CONTRACTS, describe_device, find_devices, verify_contracts
from attnscope.contracts.cases import dtype_name
from attnscope.contracts.devices import device_name
from attnscope.matrix import AttentionMatrix
from attnscope.recording import record

HEADS, DIM = 8, 64
ROUNDS = 10
DTYPES = (torch.float32, torch.bfloat16)
FOLDER = Path("benchmarks/results/devices")


class TorchAttention(nn.Module):
    """A model that consists of one call of torch's attention."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return causal attention."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Measure the ratios and verify the contracts; yield two tables."""
    device = measured_device()
    lengths = size.choose(small=(512, 2048), full=(1024, 4096, 16_384))
    yield compare_with_torch(device, lengths, ROUNDS, step)
    yield contract_errors(device, step)


def measured_device() -> torch.device:
    """Return the first accelerator, or the CPU."""
    return find_devices()[:2][-1]


def conditions() -> dict[str, str]:
    """Return device, driver and versions; not the memory of the machine, because reports are published."""
    usual = {name: value for name, value in usual_conditions().items() if name != "memory"}
    return describe_device(measured_device()) | usual


def default_report() -> Path:
    """Return where a report goes without a FILE: the folder of reports in a checkout, or else this folder."""
    name = re.sub(r"[^a-z0-9]+", "_", device_name(measured_device()).lower()).strip("_")
    return (FOLDER if FOLDER.is_dir() else Path()) / f"{name}.md"


def operations(device: torch.device, length: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return each operation on the same query, key and value; the first is torch's attention."""
    query, key, value = (torch.randn(1, HEADS, length, DIM).to(device, dtype) for _ in range(3))
    model = TorchAttention().to(device)

    def fresh() -> AttentionMatrix:
        return AttentionMatrix(query, key, mask=Causal())

    def entropy_and_received() -> tuple[Tensor, Tensor]:
        matrix = fresh()
        return matrix.entropy(), matrix.received()

    def recorded() -> object:
        with record(model) as trace:
            model(query, key, value)
        return trace

    return {
        "torch": lambda: model(query, key, value),
        "attend": lambda: attend(query, key, value, mask=Causal()),
        "lse": lambda: fresh().lse,
        "entropy and received": entropy_and_received,
        "summary": lambda: fresh().summary(),
        "record": recorded,
    }


def compare_with_torch(
    device: torch.device, lengths: Sequence[int], rounds: int, step: Callable[[str], None] = lambda _: None
) -> Table:
    """Compare every operation with a forward pass of torch's attention."""
    table = Table(
        title="operations compared with F.scaled_dot_product_attention",
        comparison=f"Causal, forward, batch 1, {HEADS} heads of {DIM}, best of {rounds} alternating runs, "
        f"{'CPU' if device.type == 'cpu' else 'wall'} time. Statistics start without lse and are computed in fp32. "
        "record is torch's call inside a recorded model.",
        columns=("n", "dtype", "torch", "attend", "lse", "entropy and received", "summary", "record"),
    )
    clock = synchronized_clock(device)
    for dtype in DTYPES:
        for length in lengths:
            step(f"{length:,} tokens in {dtype_name(dtype)}")
            torch.manual_seed(0)
            with torch.no_grad():
                best = race(operations(device, length, dtype), rounds, clock)
            ratios = (f"{best[name] / best['torch']:.2f}x" for name in table.columns[3:])
            table.add(f"{length:,}", dtype_name(dtype), duration(best["torch"]), *ratios)
    return table


def synchronized_clock(device: torch.device) -> Callable[[], float]:
    """Return the clock for a device.

    On the CPU it counts CPU time, which other processes disturb less. Calls of an accelerator return before their work
    is done, so its clock first waits for the device.
    """
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def contract_errors(device: torch.device, step: Callable[[str], None] = lambda _: None) -> Table:
    """Verify all contracts on the device."""
    table = Table(
        title="contracts",
        comparison="The contracts of `attnscope doctor --verify`: the error of the worst case against dense fp64 code "
        "on the CPU, and its bound.",
        columns=COLUMNS,
    )
    for verdict in verify_contracts(CONTRACTS, [device], step):
        table.add(*verdict.cells)
        table.missed.extend(f"{verdict.contract} on {device}: {fault}" for fault in verdict.faults)
    return table
