"""Move recorded tensors to memory-mapped files, for `record(spill=...)`.

In: a folder with enough disk space. Out: tensors mapped from unnamed files in it, so that nothing is left when the
trace is deleted. Does not know: traces. Memory: the page cache of the operating system.
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
    """A function that moves the tensors of a call to files in an existing folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SettingError(
            f"record: spill={str(folder)!r} is not a folder; create it first, on a disk with enough space"
        )

    def spill(call: Call) -> Call:
        names = ("query", "key", "value", "lse")
        tensors = {name: getattr(call, name) for name in names}
        return replace(call, **{name: to_file(one, folder) for name, one in tensors.items() if one is not None})

    return spill


def to_file(tensor: Tensor, folder: Path) -> Tensor:
    """A copy on the CPU that is memory-mapped from a file."""
    if not tensor.numel():
        return tensor.cpu()
    copy = tensor.detach().cpu().contiguous()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="attnscope-", suffix=".tensor", delete=False) as file:
        path = Path(file.name)
        copy.view(-1).view(torch.uint8).numpy().tofile(file)
    mapped = torch.from_file(str(path), shared=True, size=copy.numel(), dtype=copy.dtype)
    with suppress(PermissionError):  # some systems cannot delete mapped files
        path.unlink()
    return mapped.view(copy.shape)
