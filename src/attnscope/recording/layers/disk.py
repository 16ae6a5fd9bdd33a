"""Tensors that lie in files while they are not looked at.

In: a folder with room. Out: tensors that are mapped from it, and that the system reads as they are used. The files have
no names any more when they are mapped, so that nothing is left when the trace goes away.
Does not know: traces. Memory: what the system keeps of the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.recording.call import Call

Spill = Callable[[Call], Call]


def spill_to(folder: str | Path) -> Spill:
    """What moves the tensors of calls to a folder, which has to be there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SettingError(
            f"record: spill={str(folder)!r} is not a folder; create it first, on a disk with enough space"
        )

    def moved(call: Call) -> Call:
        names = ("query", "key", "value", "lse")
        tensors = {name: getattr(call, name) for name in names}
        return replace(call, **{name: on_disk(one, folder) for name, one in tensors.items() if one is not None})

    return moved


def on_disk(tensor: Tensor, folder: Path) -> Tensor:
    """The same numbers, mapped from a file; those of other devices come to the CPU."""
    if not tensor.numel():
        return tensor.cpu()
    whole = tensor.detach().cpu().contiguous()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="attnscope-", suffix=".tensor", delete=False) as file:
        path = Path(file.name)
        whole.view(-1).view(torch.uint8).numpy().tofile(file)
    mapped = torch.from_file(str(path), shared=True, size=whole.numel(), dtype=whole.dtype)
    with suppress(PermissionError):  # some systems keep the names of mapped files
        path.unlink()
    return mapped.view(whole.shape)
