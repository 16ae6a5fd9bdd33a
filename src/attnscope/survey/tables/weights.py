"""Which weights a survey was made with, as a hash.

All of them are hashed, and not a sample: a model with one edited head is another model, and that is what surveys are
compared for. What is hashed is the state dict of the model in memory, once a run, which the run has loaded anyway: it
takes no second reading of files, is the same for a folder, a GGUF file or a model that somebody made, and a tensor that
has two names is hashed once. In: a model. Out: name, hash and number of parameters.
Does not know: files. Memory: one tensor for each thread, where it is not on the CPU already.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn


def about_weights(model: nn.Module, name: str) -> dict[str, Any]:
    """What the manifest says of a model.

    >>> with torch.no_grad():
    ...     small = nn.Linear(2, 1)
    ...     before = about_weights(small, "small")
    ...     _ = small.weight[0, 1].add_(1.0)
    >>> before["parameters"], before["hash"] == about_weights(small, "small")["hash"]
    (3, False)
    """
    tensors = {key: value for key, value in sorted(model.state_dict().items()) if isinstance(value, Tensor)}
    different = {_place(tensor): tensor for tensor in tensors.values()}
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # hashing lets other threads run
        digests = dict(zip(different, threads.map(_digest, different.values()), strict=True))
    whole = hashlib.sha256()
    for key, tensor in tensors.items():
        whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)} {digests[_place(tensor)]}\n".encode())
    parameters = sum(parameter.numel() for parameter in model.parameters())  # one with two names is there once
    return {"name": name, "hash": f"sha256:{whole.hexdigest()}", "parameters": parameters}


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Where a tensor lies: two of the same place are one. An empty one lies nowhere."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _digest(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()
