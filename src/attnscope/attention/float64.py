"""Where to compute in float64, which MPS does not have."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = {"mps"}


def float64_device(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU if it has no float64.

    >>> float64_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device
