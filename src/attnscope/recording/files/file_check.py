"""`FileCheck`: compares the numbers of a mapped file with its SHA-256, once, when they are first used.

In: a file of a trace, its hash, and the tensors that are mapped from it. Out: nothing, or a `TraceError`.
Does not know: layers. Memory: one buffer; if the file was replaced since it was mapped, its pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.checksums import sha256_file
from attnscope.errors import TraceError


class FileCheck:
    """A check that runs on the first call, and again only if it has failed.

    Args:
        path: The file.
        sha256: The hash that trace.json has for it.
        tensors: All tensors of the file, as views of its map.
    """

    def __init__(self, path: Path, sha256: str, tensors: Collection[Tensor]) -> None:
        self._path, self._sha256, self._tensors = path, sha256, tuple(tensors)
        self._identity, self._is_done = _identity(path), False
        with path.open("rb") as file:
            start = file.read(8)
            self._header = start + file.read(int.from_bytes(start, "little"))

    def __call__(self) -> None:
        """Raise TraceError if the file is not as it was saved."""
        if self._is_done:
            return
        found = self._hash()
        if found != self._sha256:
            raise TraceError(
                f"{self._path} has the SHA-256 {found[:16]}... where trace.json says {self._sha256[:16]}...: its "
                "content was changed; copy it again"
            )
        self._is_done, self._tensors = True, ()

    def __getstate__(self) -> dict[str, Any]:
        """Check before pickling, because another process may not have the file."""
        self()
        return vars(self)

    def _hash(self) -> str:
        """The hash of the file, or of its mapped content if the path has been replaced by another file."""
        try:
            if _identity(self._path) == self._identity:
                return sha256_file(self._path)
        except OSError:  # it was removed
            pass
        digest = hashlib.sha256(self._header)
        for tensor in sorted((one for one in self._tensors if one.numel()), key=Tensor.data_ptr):
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _identity(path: Path) -> tuple[int, int]:
    """The device and inode of a file, which differ if the path is replaced by another file."""
    found = path.stat()
    return found.st_dev, found.st_ino


def skip_check() -> None:
    """The check of a layer that does not come from a file."""
