"""Predicts the cost of the Triton kernels on an H100 from the instructions of their loops. Nothing is measured."""

from __future__ import annotations

from typing import NamedTuple

NUM_MULTIPROCESSORS, PEAK_FLOPS = 132, 989.4e12  # of an H100 SXM, in bf16
FLASH_ATTENTION_3 = 0.66
"""The share of the peak that FlashAttention-3 reaches: 650 of 989 TFLOP/s, causal, head dim 128."""
EFFICIENCY = 0.8  # of a kernel at its limit
GOAL = 1.5  # forward calls of FlashAttention-3 for both passes


class HotLoop(NamedTuple):
    """Instructions per cell and thread in the loop over tiles that need no mask."""

    all: float
    fma: float
    alu: float
    mufu: float


class Rates(NamedTuple):
    """What one streaming multiprocessor does per clock."""

    flops: float  #: of matrix products in bf16
    issue: float  #: instructions of all threads
    alu: float  #: comparisons, selections and integer operations
    mufu: float  #: exponentials
    l2_bytes: float  #: read from the L2 cache


H100 = Rates(flops=4096, issue=128, alu=64, mufu=16, l2_bytes=28)
CLOCKS_PER_SECOND = PEAK_FLOPS / H100.flops  # of all multiprocessors together


class Clocks(NamedTuple):
    """Clocks per cell and streaming multiprocessor."""

    products: float  #: of the matrix product
    arithmetic: float  #: the slowest of issue, comparisons and exponentials
    l2_cache: float  #: to read the operand that is not kept

    @property
    def overlapped(self) -> float:
        """With everything at the same time, as several programs on a multiprocessor allow."""
        return max(self) / EFFICIENCY

    @property
    def serial(self) -> float:
        """With arithmetic after the matrix product; only reads overlap."""
        return max(self.products + self.arithmetic, self.l2_cache) / EFFICIENCY


def count_clocks(loop: HotLoop, head_dim: int, kept: int, rates: Rates = H100) -> Clocks:
    """Return the clocks of a cell of the hot loop in bf16; a program keeps `kept` queries or keys.

    >>> count_clocks(HotLoop(all=12.8, fma=6.4, alu=3.2, mufu=0.8), 128, 64, H100._replace(l2_bytes=32))
    Clocks(products=0.0625, arithmetic=0.1, l2_cache=0.125)
    """
    arithmetic = max(loop.all / rates.issue, loop.alu / rates.alu, loop.mufu / rates.mufu)
    return Clocks(2 * head_dim / rates.flops, arithmetic, 2 * head_dim / kept / rates.l2_bytes)


def flash_attention_clocks(head_dim: int, rates: Rates = H100) -> float:
    """Return the clocks of a cell in a forward call of FlashAttention-3, which has two matrix products."""
    return 4 * head_dim / rates.flops / FLASH_ATTENTION_3


def overlap_for(goal: float, overlapped: float, serial: float) -> float:
    """Return which share of the possible overlap costs `goal` clocks, between 0 and 1.

    >>> overlap_for(1.5, 1.0, 2.0), overlap_for(2.5, 1.0, 2.0)
    (0.5, 0.0)
    """
    return min(max((serial - goal) / (serial - overlapped), 0.0), 1.0)
