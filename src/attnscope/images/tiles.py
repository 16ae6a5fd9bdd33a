"""Photos that are cut into tiles, as in LLaVA-NeXT: resized, padded to a canvas, cut, and joined without the padding.

In: sizes in pixels. Out: the rows and columns of patches that are left, and their place on the photo.
Does not know: models, positions of a sequence. Memory: O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from attnscope.images.layout import Box

Size = tuple[int, int]
"""Height and width."""


class Canvas(NamedTuple):
    """A canvas with a photo in its centre.

    Args:
        size: Height and width of the canvas.
        resized: Height and width of the photo on it, which fills one of the two.
    """

    size: Size
    resized: Size

    def locate(self, top: int, left: int, bottom: int, right: int) -> Box:
        """A rectangle of the canvas as a part of the photo; beyond 0 and 1 where it is padding.

        >>> Canvas((16, 32), (8, 32)).locate(0, 0, 16, 16)
        Box(left=0.0, top=-0.5, right=0.5, bottom=1.5)
        """
        height, width = self.resized
        above, before = (self.size[0] - height) // 2, (self.size[1] - width) // 2
        return Box((left - before) / width, (top - above) / height, (right - before) / width, (bottom - above) / height)


def choose_canvas(photo: Size, sizes: Sequence[Sequence[int]]) -> Canvas:
    """The canvas on which a photo keeps most of its pixels; among equals, the one with the least padding.

    >>> choose_canvas((8, 32), [(16, 16), (16, 32), (32, 32)])
    Canvas(size=(16, 32), resized=(8, 32))
    """

    def kept_and_wasted(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / photo[1], size[0] / photo[0])
        kept = min(int(photo[1] * scale) * int(photo[0] * scale), photo[0] * photo[1])
        return kept, kept - size[0] * size[1]

    height, width = max(sizes, key=kept_and_wasted)
    down, across = height / photo[0], width / photo[1]
    if across < down:
        return Canvas((height, width), (min(ceil(photo[0] * across), height), width))
    return Canvas((height, width), (height, min(ceil(photo[1] * down), width)))


def without_padding(photo: Size, grid: Size) -> tuple[range, range]:
    """The rows and columns of a grid of patches that are left when the padding is removed.

    >>> without_padding((8, 32), (4, 8))
    (range(1, 3), range(0, 8))
    """
    rows, columns = grid
    if photo[1] / photo[0] > columns / rows:
        padding = (rows - int(round(photo[0] * (columns / photo[1]), 7))) // 2
        return range(padding, rows - padding), range(columns)
    padding = (columns - int(round(photo[1] * (rows / photo[0]), 7))) // 2
    return range(rows), range(padding, columns - padding)
