"""Copies from main memory to a device, for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor on a device, in the same dtype by default.

    `tensor.to("cuda")` and `torch.tensor(..., device="cuda")` wait until the device has finished all of its work.
    """
    is_upload = tensor.device.type == "cpu" and device.type == "cuda"
    return tensor.to(device=device, dtype=dtype, non_blocking=is_upload)
