"""What the tests of figures share: matrices, and a figure's pixels and texts."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from attnscope.attention import Causal
from attnscope.attention.algebra import Mask
from attnscope.figures.drawing import HATCHING
from attnscope.matrix import AttentionMatrix

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


def notes(axes: Axes) -> dict[str, Annotation]:
    """What is written at points, by its text."""
    return {text.get_text(): text for text in axes.texts if isinstance(text, Annotation)}


def assert_texts_stand_apart(figure: Figure) -> None:
    """Fail where any text that can be seen is over another, or leaves the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [*figure.texts, *(text for axes in figure.axes for text in _texts_around(axes))]
    # Of a note, only the text: its line to a point may well pass another.
    found = [(text.get_text(), Text.get_window_extent(text, canvas.get_renderer())) for text in texts]
    assert len(found) >= 4
    for (one, a), (other, b) in itertools.combinations(found, 2):
        assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0, f"{one!r} is over {other!r}"
    for text, box in found:
        assert min(box.x0, box.y0) >= 0, f"{text!r} is cut off"
        assert box.x1 <= figure.bbox.width, f"{text!r} is cut off"
        assert box.y1 <= figure.bbox.height, f"{text!r} is cut off"


def _texts_around(axes: Axes) -> list[Text]:
    """All that is written in and around axes."""
    legend = axes.get_legend()
    texts = [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title, *(legend.get_texts() if legend else [])]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in texts if text.get_text()]
