"""`PatchMap`: one number per patch of an image, such as what a word attends to, and its pixels.

In: values (..., frames, rows, columns). Out: arrays of the size of a photo. Does not know: models, attention.
Memory: that of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.images.layout import WHOLE, Box

Patch = tuple[int, ...]
"""(row, column), or (frame, row, column) of a video."""


@dataclass(frozen=True, eq=False)
class PatchMap:
    """One number per patch.

    Args:
        values: (heads, frames, rows, columns), NaN for patches that are hidden or not in the sequence.
        heads: The indices of the heads.
        box: The part of the photo that the patches cover.
        elsewhere: The weights on everything but these patches by name, such as "class", "register" and "text",
            (heads,) each; empty if the values are not weights of one query.
        title: What is shown.
        photo: (height, width, 3) from 0 to 1; one per frame, (frames, height, width, 3), of a video.
        marked: The patches that the map is about, which a figure outlines.
        quantity: What the numbers are, for the colour bar.
    """

    values: Tensor
    heads: tuple[int, ...]
    box: Box = WHOLE
    elsewhere: Mapping[str, Tensor] = field(default_factory=dict)
    title: str = ""
    photo: np.ndarray | None = None
    marked: tuple[Patch, ...] = ()
    quantity: str = "attention weight"

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        frames, rows, columns = self.values.shape[1:]
        return frames, rows, columns

    def mean(self) -> PatchMap:
        """The mean over the heads."""
        elsewhere = {name: share.mean(0, keepdim=True) for name, share in self.elsewhere.items()}
        return replace(self, values=self.values.mean(0, keepdim=True), heads=(), elsewhere=elsewhere)

    def hide(self, patches: Sequence[Patch]) -> PatchMap:
        """The map without some patches, such as those that `ImageAttention.sinks` names; their values are NaN.

        Args:
            patches: The rows and columns of patches.

        Returns:
            A copy of the map.

        >>> PatchMap(torch.ones(1, 1, 2, 2), (0,)).hide([(0, 1)]).values[0, 0]
        tensor([[1., nan],
                [1., 1.]])
        """
        values = self.values.clone()
        for patch in patches:
            values[:, *find_patch(patch, self.grid)] = torch.nan
        return replace(self, values=values)

    def to_pixels(self, height: int, width: int) -> np.ndarray:
        """The values at each pixel of a photo, (heads, frames, height, width); NaN outside of the box.

        A pixel has the value of the patch that its centre is in.

        Args:
            height: The height of the photo in pixels.
            width: Its width.

        Returns:
            The values as float32.

        >>> PatchMap(torch.tensor([[[[1.0, 2.0]]]]), (0,)).to_pixels(1, 4)[0, 0]
        array([[1., 1., 2., 2.]], dtype=float32)
        """
        _, rows, columns = self.grid
        down = _patch_of_pixels(height, self.box.top, self.box.bottom, rows)
        across = _patch_of_pixels(width, self.box.left, self.box.right, columns)
        found = self.values.float().cpu().numpy()[:, :, down.clip(0)][..., across.clip(0)]
        found[:, :, down < 0] = np.nan
        found[..., across < 0] = np.nan
        return found


def find_patch(patch: Patch, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """A patch as (frame, row, column); the frame may be left out for an image.

    Raises:
        SettingError: There is no such patch.
    """
    place = tuple(patch) if len(patch) == 3 or grid[0] != 1 else (0, *patch)
    if len(place) != 3 or not all(0 <= at < size for at, size in zip(place, grid, strict=True)):
        expected = "(row, column)" if grid[0] == 1 else "(frame, row, column)"
        raise SettingError(f"expected a patch {expected} of {' x '.join(map(str, grid))}, got {tuple(patch)}")
    return place


def _patch_of_pixels(count: int, start: float, stop: float, patches: int) -> np.ndarray:
    """The patch that the centre of each pixel is in; -1 outside of all."""
    place = ((np.arange(count) + 0.5) / count - start) / (stop - start) * patches
    found = np.floor(place).astype(np.int64)
    return np.where((found >= 0) & (found < patches), found, -1)
