"""Positions of queries or keys that the host knows, and tensors of them on a device.

Which blocks to compute depends on the first and last position. If positions were only a tensor on a GPU, the host would
have to wait for it to ask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Positions:
    """Positions along one axis in main memory, in any order, and what selects them from tensors on a device.

    >>> some = Positions([4, 5, 6], torch.device("cpu"))
    >>> some.start, some.stop, some.index
    (4, 7, slice(4, 7, None))
    """

    def __init__(self, where: Sequence[int] | Tensor, device: torch.device) -> None:
        self.device = device
        self._where = _to_range(where)
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, part: slice) -> Positions:
        found = Positions(self._where[part], self.device)
        found._tensor = None if self._tensor is None else self._tensor[part]
        return found

    @property
    def is_range(self) -> bool:
        """Whether they are consecutive."""
        return isinstance(self._where, range)

    @property
    def start(self) -> int:
        """The smallest position."""
        return int(self._where.min()) if isinstance(self._where, Tensor) else min(self._where)

    @property
    def stop(self) -> int:
        """One past the largest position."""
        return 1 + (int(self._where.max()) if isinstance(self._where, Tensor) else max(self._where))

    @property
    def tensor(self) -> Tensor:
        """The positions on the device."""
        if self._tensor is None:
            self._tensor = self._to_tensor(self.device)
        return self._tensor

    @property
    def host(self) -> Tensor:
        """The positions in main memory."""
        return self._to_tensor(torch.device("cpu"))

    @property
    def index(self) -> slice | Tensor:
        """What selects them from a tensor on the device: a slice where possible, which copies nothing."""
        return slice(self._where.start, self._where.stop) if isinstance(self._where, range) else self.tensor

    def tolist(self) -> list[int]:
        """The positions as a list."""
        return self._where.tolist() if isinstance(self._where, Tensor) else list(self._where)

    def _to_tensor(self, device: torch.device) -> Tensor:
        if isinstance(self._where, Tensor):
            return self._where.to(device)
        if isinstance(self._where, range):
            return torch.arange(self._where.start, self._where.stop, device=device)
        return torch.tensor(self._where, device=device)


def _to_range(where: Sequence[int] | Tensor) -> range | Sequence[int] | Tensor:
    """Consecutive positions as a range, others as they are."""
    if not len(where):
        return range(0)
    first, last = int(where[0]), int(where[-1])
    if last - first + 1 != len(where):
        return where
    consecutive = range(first, last + 1)
    if isinstance(where, Tensor):
        return consecutive if bool((where.diff() == 1).all()) else where
    return consecutive if isinstance(where, range) or list(where) == list(consecutive) else where


def bins_of_positions(edges: Sequence[int], device: torch.device) -> Tensor:
    """The bin of each position between the first and the last edge.

    >>> bins_of_positions([0, 2, 3], torch.device("cpu"))
    tensor([0, 0, 1])
    """
    widths = torch.tensor(edges, device=device).diff()
    return torch.repeat_interleave(widths, output_size=edges[-1] - edges[0])  # without the size, the host would wait
