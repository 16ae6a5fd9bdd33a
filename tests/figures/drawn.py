"""What the tests of figures share: matrices, and a figure's pixels."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sightline.attention import Causal
from sightline.attention.algebra import Mask
from sightline.figures.paint import HATCHING
from sightline.matrix import AttentionMatrix

CAUSAL = Causal()
AWKWARD = ["$x_1$", "$", "a_b^{", "\n", " ", "", "\t", "😀", "🦞", "日本", "\\frac", "%", "\x07", "\ufffd", "é" * 50]


def matrix(*shape: int, mask: Mask = CAUSAL) -> AttentionMatrix:
    """A random matrix (..., n, n), from shape (..., n, dim)."""
    return AttentionMatrix(torch.randn(*shape), torch.randn(*shape), mask=mask)


def values_of(axes: Axes) -> np.ma.MaskedArray:
    """The numbers of the image in these axes."""
    (image,) = axes.get_images()
    return np.ma.asarray(image.get_array())


def cell_colours(figure: Figure, axes: Axes, row: float, column: float, *, reach: int = 3) -> set[tuple[int, ...]]:
    """The colours of the pixels around the middle of a cell."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    x, y = axes.transData.transform((column, row))
    down, across = pixels.shape[0] - round(y), round(x)
    found = pixels[down - reach : down + reach + 1, across - reach : across + reach + 1, :3]
    return {tuple(map(int, colour)) for colour in found.reshape(-1, 3)}


def is_hatched(colours: set[tuple[int, ...]]) -> bool:
    """Whether these are colours between the two of the hatching."""
    low, high = sorted(to_rgb(str(HATCHING[part])) for part in ("facecolor", "edgecolor"))
    inside = [
        all(255 * a - 1 <= c <= 255 * b + 1 for a, c, b in zip(low, colour, high, strict=True)) for colour in colours
    ]
    return all(inside)
