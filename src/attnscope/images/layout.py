"""Which positions of a sequence are patches of an image: grids, special tokens, and the parts of a packed sequence.

In: integers. Out: the position of each patch. Does not know: models, attention, pixels of a photo.
Memory: O(patches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError

ABSENT = -1
"""The position of a patch that a part of a packed sequence does not have."""


class Box(NamedTuple):
    """A part of an image, as fractions of its width and height."""

    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0

    def inside(self, outer: Box) -> Box:
        """The same part of another part.

        Args:
            outer: The part that this one is a part of.

        Returns:
            The part of the whole.

        >>> Box(0.5, 0.0, 1.0, 1.0).inside(Box(0.0, 0.0, 0.5, 0.5))
        Box(left=0.25, top=0.0, right=0.5, bottom=0.5)
        """
        width, height = outer.right - outer.left, outer.bottom - outer.top
        return Box(
            outer.left + self.left * width,
            outer.top + self.top * height,
            outer.left + self.right * width,
            outer.top + self.bottom * height,
        )


WHOLE = Box()


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """The patches of one image, or of the frames of one video, in a sequence.

    Args:
        positions: The position of each patch, (frames, rows, columns), int64.
        image: The index of the image in the forward pass.
        pixels: Height and width of the image that the model was given, if they are known.
        box: The part of that image which the patches cover.
    """

    positions: Tensor
    image: int = 0
    pixels: tuple[int, int] | None = None
    box: Box = WHOLE

    def __post_init__(self) -> None:
        if self.positions.dim() != 3 or self.positions.dtype != torch.int64 or not self.positions.numel():
            raise ShapeError(
                "PatchGrid: expected int64 positions (frames, rows, columns), got "
                f"{tuple(self.positions.shape)} {self.positions.dtype}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        frames, rows, columns = self.positions.shape
        return frames, rows, columns


@dataclass(frozen=True, eq=False)
class Layout:
    """The images and special tokens of one sequence.

    Args:
        length: The number of positions.
        grids: The images, in order.
        special: The positions of special tokens by name, such as "class" and "register".
        can_grow: Whether tokens may follow, as in a text that a model continues.
    """

    length: int
    grids: tuple[PatchGrid, ...]
    special: Mapping[str, range] = field(default_factory=lambda: MappingProxyType({}))
    can_grow: bool = False

    def fits(self, length: int) -> bool:
        """Whether a sequence of this length can be this one.

        Args:
            length: The number of positions of a sequence.

        Returns:
            True for the length of the layout; for longer ones, too, if it can grow.
        """
        return length == self.length or (self.can_grow and length > self.length)

    def grid_of(self, image: int) -> PatchGrid | None:
        """The patches of an image, or None if it is in another sequence.

        Args:
            image: The index of an image.

        Returns:
            Its patches, or None.
        """
        return next((grid for grid in self.grids if grid.image == image), None)

    def part(self, start: int, stop: int) -> Layout:
        """The positions from start to stop as a sequence of their own; other patches are absent.

        Args:
            start: The first position.
            stop: The position after the last one.

        Returns:
            The shorter layout.
        """
        inside = range(start, stop)
        grids = []
        for grid in self.grids:
            is_here = (grid.positions >= start) & (grid.positions < stop)
            if is_here.any():
                grids.append(replace(grid, positions=torch.where(is_here, grid.positions - start, ABSENT)))
        special = {
            name: range(max(some.start, start) - start, min(some.stop, stop) - start)
            for name, some in self.special.items()
            if any(at in inside for at in some)
        }
        return Layout(len(inside), tuple(grids), special)


def consecutive(first: int, frames: int, rows: int, columns: int) -> Tensor:
    """The positions of patches that follow each other row by row and frame by frame.

    >>> consecutive(1, 1, 2, 3)
    tensor([[[1, 2, 3],
             [4, 5, 6]]])
    """
    return first + torch.arange(frames * rows * columns).reshape(frames, rows, columns)


def in_blocks(first: int, frames: int, rows: int, columns: int, merge: int, *, window: int | None = None) -> Tensor:
    """The positions of patches that are ordered by blocks of `merge` x `merge`, which a model merges into one token.

    Args:
        first: The position of the first patch.
        frames: Frames of a video, 1 for an image.
        rows: Rows of patches.
        columns: Columns of patches.
        merge: Patches along each side of a block.
        window: Blocks along each side of a window, if all blocks of a window come before those of the next one. Windows
            at the right and at the bottom may be smaller.

    >>> in_blocks(0, 1, 2, 4, 2)
    tensor([[[0, 1, 4, 5],
             [2, 3, 6, 7]]])
    >>> in_blocks(0, 1, 2, 3, 1, window=2)
    tensor([[[0, 1, 4],
             [2, 3, 5]]])
    """
    if rows % merge or columns % merge:
        raise ShapeError(f"expected rows and columns that are multiples of {merge}, got {rows} x {columns}")
    high, wide = rows // merge, columns // merge
    blocks = consecutive(0, frames, high, wide)
    if window is not None:
        across = -(-wide // window)
        number = (torch.arange(high) // window)[:, None] * across + torch.arange(wide) // window
        order = (number + torch.arange(frames)[:, None, None] * high * wide).flatten().argsort(stable=True)
        blocks = order.argsort().reshape(frames, high, wide)
    patches = blocks[..., None] * merge**2 + torch.arange(merge**2)
    return first + patches.reshape(frames, high, wide, merge, merge).permute(0, 1, 3, 2, 4).reshape(
        frames, rows, columns
    )


def encoder_layout(
    shape: tuple[int, int, int],
    special: Mapping[str, int],
    *,
    after: Mapping[str, int] = MappingProxyType({}),
    image: int = 0,
    pixels: tuple[int, int] | None = None,
    box: Box = WHOLE,
) -> Layout:
    """The layout of an image encoder: special tokens, then the patches, then tokens `after` them.

    >>> layout = encoder_layout((1, 2, 2), {"class": 1, "register": 4})
    >>> layout.length, layout.special["register"], layout.grids[0].positions.flatten().tolist()
    (9, range(1, 5), [5, 6, 7, 8])
    """
    places, at = name_tokens(special, 0)
    frames, rows, columns = shape
    grid = PatchGrid(consecutive(at, *shape), image, pixels, box)
    rest, length = name_tokens(after, at + frames * rows * columns)
    return Layout(length, (grid,), {**places, **rest})


def name_tokens(counts: Mapping[str, int], first: int) -> tuple[dict[str, range], int]:
    """The positions of special tokens that follow each other, and the position after them."""
    places: dict[str, range] = {}
    for name, count in counts.items():
        if count:
            places[name] = range(first, first + count)
            first += count
    return places, first


def text_layout(places: Tensor, length: int, grids: Sequence[tuple[int, PatchGrid]]) -> Layout:
    """The layout of a text that contains images.

    Args:
        places: The positions of all image tokens, in order.
        length: The number of tokens of the text.
        grids: For each image the index of its first image token, and a grid whose positions count from 0.
    """
    moved = [replace(grid, positions=places[first + grid.positions]) for first, grid in grids]
    return Layout(length, tuple(moved), can_grow=True)


def layouts_by_hand(
    shapes: Mapping[str, Sequence[int]], grid: Sequence[int], first: int
) -> dict[str, tuple[Layout, ...]]:
    """The layouts of each layer: one per row of its batch, with one image whose patches follow each other row by row.

    Args:
        shapes: (batch, heads, queries, keys) of each layer by name.
        grid: Rows and columns, or frames, rows and columns.
        first: The position of the first patch.

    Raises:
        SettingError: It is not a grid, or no layer is long enough.
    """
    if len(grid) not in (2, 3) or min(grid) < 1 or first < 0:
        raise SettingError(
            "on_image: expected grid=(rows, columns) or (frames, rows, columns) and first of at least 0, got "
            f"{tuple(grid)} and {first}"
        )
    frames, rows, columns = grid if len(grid) == 3 else (1, *grid)
    positions = consecutive(first, frames, rows, columns)
    length, longest = first + positions.numel(), max((max(shape[2:]) for shape in shapes.values()), default=0)
    if length > longest:
        raise SettingError(
            f"on_image: {positions.numel()} patches from position {first} on are more than the {longest} positions of "
            "the longest layer"
        )
    special = {"before": range(first)} if first else {}
    batch = max(shape[0] for shape in shapes.values())
    images = [Layout(length, (PatchGrid(positions, image),), special, can_grow=True) for image in range(batch)]
    return {name: tuple(images[: shape[0]]) for name, shape in shapes.items()}
