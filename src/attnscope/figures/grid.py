"""`head_grid`: the attention patterns of many heads, in one colour scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.errors import ShapeError
from attnscope.figures.drawing import add_colour_bar, draw_picture, make_norm, new_figure
from attnscope.figures.picture import make_picture, select_head
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_INCHES = 1.45
MAX_COLUMNS = 6  # by default


def head_grid(
    matrices: AttentionMatrix | Sequence[AttentionMatrix],
    *,
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    bins: int = 64,
    reduction: str = "density",
    scale: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw small attention patterns of many heads in one colour scale.

    Args:
        matrices: One matrix (heads, queries, keys), or a list of matrices of one head each.
        columns: How many heads to draw per row.
        labels: One title per head.
        bins: The maximum number of rows and columns per head.
        reduction: What a bin shows, as in `heatmap`.
        scale: "linear" or "log" colours; by default by the number of keys.
        limits: The lowest and highest value of the colour scale.
        title: The title of the figure.

    Returns:
        A matplotlib figure. Masked cells are hatched.

    Raises:
        ShapeError: There is not one label per head.
        ValueError: `columns` is below 1.

    >>> import torch
    >>> head_grid(AttentionMatrix(torch.randn(4, 9, 8), torch.randn(2, 9, 8)), columns=2)
    <Figure size 760x710 with 5 Axes>
    """
    heads = _heads(matrices)
    names = [f"head {at}" for at in range(len(heads))] if labels is None else labels
    if isinstance(names, str) or len(names) != len(heads):
        raise ShapeError(f"head_grid: expected a list of {len(heads)} labels, one per head, got {names!r}")
    if columns is not None and columns < 1:
        raise ValueError(f"head_grid: expected columns of at least 1, got {columns}")
    wide = min(columns or min(math.ceil(math.sqrt(len(heads))), MAX_COLUMNS), len(heads))
    high = math.ceil(len(heads) / wide)
    pictures = [make_picture(head, bins, reduction) for head in heads]
    norm = make_norm(pictures, scale, limits)
    figure = new_figure(wide * HEAD_INCHES + 0.9, high * (HEAD_INCHES + 0.15) + 0.35 + 0.25 * bool(title))
    grid = figure.subplots(high, wide, squeeze=False)
    for place in grid.flat[len(heads) :]:
        place.remove()
    shown = list(grid.flat[: len(heads)])
    images = [draw_picture(axes, picture, norm) for axes, picture in zip(shown, pictures, strict=True)]
    for axes, name in zip(shown, names, strict=True):
        axes.set_title(name, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    figure.supxlabel(_axis_text("key (column)", {picture.keys for picture in pictures}), fontsize=8)
    figure.supylabel(_axis_text("query (row)", {picture.queries for picture in pictures}), fontsize=8)
    if title:
        figure.suptitle(title, fontsize=9)
    add_colour_bar(figure, images[0], shown, pictures, reduction)
    return figure


def _heads(matrices: AttentionMatrix | Sequence[AttentionMatrix]) -> list[AttentionMatrix]:
    """Return the matrices of all heads."""
    if not isinstance(matrices, AttentionMatrix):
        heads = [select_head(matrix, "head_grid") for matrix in matrices]
        if not heads:
            raise ShapeError("head_grid: expected at least one head, got an empty list")
        return heads
    leading = tuple(matrices.shape[:-2])
    if len(leading) == 2 and leading[0] != 1:
        raise ShapeError(f"head_grid: expected a batch of one sequence, got {leading[0]}; select one with .batch(b)")
    matrices = matrices.batch(0) if len(leading) == 2 else matrices
    return [matrices.head(at) for at in range(leading[-1])] if leading else [matrices]


def _axis_text(name: str, lengths: set[int]) -> str:
    """Return the name of an axis, with its positions if all heads have the same."""
    return f"{name}, 0 … {max(lengths) - 1}" if len(lengths) == 1 else name
