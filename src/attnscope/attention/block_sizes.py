"""The sizes of blocks and steps on each kind of device, in one table.

A CPU is fastest with blocks that fit its caches, and can look at a result at no cost. A GPU starts a kernel in
microseconds and computes millions of scores in that time, so its blocks are as large as memory allows; and it is idle
whenever the host waits for one of its results.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class BlockSizes(NamedTuple):
    """Sizes for one kind of device; cells are counted over all batch rows and heads."""

    streaming_cells: int  # scores of a block of `attend`
    streaming_columns: int  # keys of such a block
    min_rows: int  # queries of such a block, and the multiple that they are rounded to
    max_rows: int
    pass_cells: int  # weights of a block of a pass over a matrix
    head_cells: int  # with fewer weights per head in a block, its products are too small to be fast
    step_cells: int  # scores between two checks for cancellation
    step_bytes: int  # memory of a step, unless the caller sets a limit
    row_cells: int  # scores of scattered rows at a time
    mask_cells: int  # of a mask without structure, evaluated at a time
    keys_per_call: int  # of the fused kernel
    can_read: bool  # whether code may look at a result to decide what to compute next


CPU = BlockSizes(
    streaming_cells=2**20,  # 4 MiB of fp32 scores, near the size of a second-level cache
    streaming_columns=512,
    min_rows=64,
    max_rows=1024,
    pass_cells=2**19,  # two such blocks fit the caches of two cores
    head_cells=2**15,
    step_cells=2**27,  # about a quarter of a second on two cores
    step_bytes=2**28,
    row_cells=2**22,
    mask_cells=2**21,
    keys_per_call=2**14,
    can_read=True,
)
GPU = BlockSizes(
    streaming_cells=2**26,
    streaming_columns=2048,
    min_rows=64,
    max_rows=2**14,
    pass_cells=2**26,
    head_cells=2**20,
    step_cells=2**35,
    step_bytes=2**31,
    row_cells=2**26,
    mask_cells=2**26,
    keys_per_call=2**15,
    can_read=False,
)
SIZES = {"cpu": CPU, "mps": GPU._replace(streaming_cells=2**24, pass_cells=2**24, step_cells=2**31, step_bytes=2**29)}
"""By type of device; all others are `GPU`."""


def block_sizes(device: torch.device) -> BlockSizes:
    """Return the sizes for a device.

    >>> block_sizes(torch.device("cpu")).streaming_columns
    512
    """
    return SIZES.get(device.type, GPU)
