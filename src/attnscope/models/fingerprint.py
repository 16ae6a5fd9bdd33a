"""A fingerprint of a model's parameters, to store with the results that were measured with it.

All parameters are hashed, so that a model with one edited head has another fingerprint. The hash covers the state dict
in memory. It is the same for a folder and a GGUF file with the same parameters. A tensor with two names is hashed once.
In: a model. Out: name, hash and number of parameters.
Does not know: files. Memory: a CPU copy of one tensor per thread, for tensors on other devices.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint_model(model: nn.Module, name: str) -> dict[str, Any]:
    """Return the name, the hash and the number of parameters of a model, as stored in results and manifests.

    >>> with torch.no_grad():
    ...     small = nn.Linear(2, 1)
    ...     before = fingerprint_model(small, "small")
    ...     _ = small.weight[0, 1].add_(1.0)
    >>> before["parameters"], before["hash"] == fingerprint_model(small, "small")["hash"]
    (3, False)
    """
    tensors = {key: value for key, value in sorted(model.state_dict().items()) if isinstance(value, Tensor)}
    different = {_place(tensor): tensor for tensor in tensors.values()}
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # hashing releases the GIL
        digests = dict(zip(different, threads.map(_digest, different.values()), strict=True))
    whole = hashlib.sha256()
    for key, tensor in tensors.items():
        whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)} {digests[_place(tensor)]}\n".encode())
    parameters = sum(parameter.numel() for parameter in model.parameters())  # shared parameters count once
    return {"name": name, "hash": f"sha256:{whole.hexdigest()}", "parameters": parameters}


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return the memory location and layout of a tensor, which are equal for two names of the same tensor."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _digest(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()
