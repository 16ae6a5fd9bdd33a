"""The sampling order: all windows in a new random order in each epoch.

In: the number of a sample, counted from the beginning of a run. Out: the number of a window. There is no state, so a
checkpoint only needs the number of samples seen. A resumed run, with any number of ranks, reads the same windows as an
uninterrupted one.
Does not know: tokens, ranks. Memory: 8 bytes per window, for each of the last few epochs.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from attnscope.errors import SettingError


def window_index(sample: int, windows: int, seed: int) -> int:
    """Return the window of a sample. Samples 0 to `windows` - 1 are each window once, and so are the next `windows`.

    >>> [window_index(sample, 4, seed=3) for sample in range(8)]
    [3, 1, 0, 2, 2, 1, 3, 0]
    """
    if sample < 0:
        raise SettingError(f"expected a sample number of at least 0, got {sample}")
    epoch, place = divmod(sample, windows)
    return int(_order(epoch, windows, seed)[place])


def epoch_offset(epoch: int, below: int, seed: int) -> int:
    """Return a random offset of an epoch, from 0 to `below` - 1."""
    return int(torch.randint(below, (), generator=seeded_generator("offset", epoch, seed)))


@lru_cache(maxsize=4)  # a batch may span two epochs
def _order(epoch: int, windows: int, seed: int) -> Tensor:
    return torch.randperm(windows, generator=seeded_generator("order", epoch, seed))


def seeded_generator(purpose: str, number: int, seed: int) -> torch.Generator:
    """Return a generator for a purpose, number and seed, which are hashed so that close numbers are unrelated."""
    digest = hashlib.sha256(f"{purpose} {number} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
