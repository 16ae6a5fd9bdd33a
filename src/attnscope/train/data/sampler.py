"""Which window a sample is: another random order of all windows in each epoch.

In: the number of a sample, counted from the beginning of a run. Out: the number of a window. There is no state: a
checkpoint has to hold nothing but how many samples were seen, and a run that goes on from there, with any number of
ranks, sees exactly the windows it would have seen.
Does not know: tokens, ranks. Memory: 8 bytes a window, for the orders of the last few epochs.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from attnscope.errors import SettingError


def window_index(sample: int, windows: int, seed: int) -> int:
    """The window that a sample is: samples 0 to `windows` - 1 are each window once, and so are the next `windows`.

    >>> [window_index(sample, 4, seed=3) for sample in range(8)]
    [3, 1, 0, 2, 2, 1, 3, 0]
    """
    if sample < 0:
        raise SettingError(f"samples are counted from 0, and number {sample} was asked for")
    epoch, place = divmod(sample, windows)
    return int(_order(epoch, windows, seed)[place])


def epoch_offset(epoch: int, below: int, seed: int) -> int:
    """A random number for each epoch, from 0 up to but not including `below`."""
    return int(torch.randint(below, (), generator=seeded_generator("offset", epoch, seed)))


@lru_cache(maxsize=4)  # a batch may span two epochs
def _order(epoch: int, windows: int, seed: int) -> Tensor:
    return torch.randperm(windows, generator=seeded_generator("order", epoch, seed))


def seeded_generator(purpose: str, number: int, seed: int) -> torch.Generator:
    """Random numbers of their own for each purpose, number and seed: neighbouring numbers are mixed by a hash."""
    digest = hashlib.sha256(f"{purpose} {number} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
