"""`head_grid`: many heads side by side, in one scale of colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.errors import ShapeError
from attnscope.figures.drawing import add_scale, colour_scale, new_figure, paint
from attnscope.figures.picture import one_head, take_picture
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 1.45  # of one head
WIDEST = 6  # heads in a row, unless told


def head_grid(
    matrices: AttentionMatrix | Sequence[AttentionMatrix],
    *,
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    bins: int = 64,
    how: str = "density",
    scale: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Small pictures of many heads in one scale of colours, from one matrix (heads, queries, keys) or a list of heads.

    Each has at most `bins` by `bins` cells, masked ones hatched; `how`, `scale` and `limits` are those of `heatmap`.

    >>> import torch
    >>> head_grid(AttentionMatrix(torch.randn(4, 9, 8), torch.randn(2, 9, 8)), columns=2)
    <Figure size 760x710 with 5 Axes>
    """
    heads = _heads(matrices)
    names = [f"head {at}" for at in range(len(heads))] if labels is None else labels
    if isinstance(names, str) or len(names) != len(heads):
        raise ShapeError(f"head_grid: {len(heads)} heads take a list of {len(heads)} labels, got {names!r}")
    if columns is not None and columns < 1:
        raise ValueError(f"head_grid(columns={columns}): wants at least 1 head in a row; leave it away for a square")
    wide = min(columns or min(math.ceil(math.sqrt(len(heads))), WIDEST), len(heads))
    high = math.ceil(len(heads) / wide)
    pictures = [take_picture(head, bins, how) for head in heads]
    norm = colour_scale(pictures, scale, limits)
    figure = new_figure(wide * INCHES + 0.9, high * (INCHES + 0.15) + 0.35 + 0.25 * bool(title))
    grid = figure.subplots(high, wide, squeeze=False)
    for place in grid.flat[len(heads) :]:
        place.remove()
    shown = list(grid.flat[: len(heads)])
    images = [paint(axes, picture, norm) for axes, picture in zip(shown, pictures, strict=True)]
    for axes, name in zip(shown, names, strict=True):
        axes.set_title(name, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    figure.supxlabel(_axis_text("key (column)", {picture.keys for picture in pictures}), fontsize=8)
    figure.supylabel(_axis_text("query (row)", {picture.queries for picture in pictures}), fontsize=8)
    if title:
        figure.suptitle(title, fontsize=9)
    add_scale(figure, images[0], shown, pictures, how)
    return figure


def _heads(matrices: AttentionMatrix | Sequence[AttentionMatrix]) -> list[AttentionMatrix]:
    """The heads one by one."""
    if not isinstance(matrices, AttentionMatrix):
        heads = [one_head(matrix, "head_grid") for matrix in matrices]
        if not heads:
            raise ShapeError("head_grid: draws at least one head, got an empty list")
        return heads
    leading = tuple(matrices.shape[:-2])
    if len(leading) == 2 and leading[0] != 1:
        raise ShapeError(f"head_grid: draws the heads of one batch row, got {leading[0]}; choose one with .batch(b)")
    matrices = matrices.batch(0) if len(leading) == 2 else matrices
    return [matrices.head(at) for at in range(leading[-1])] if leading else [matrices]


def _axis_text(name: str, lengths: set[int]) -> str:
    """What an axis is, and its positions where all heads have the same."""
    return f"{name}, 0 … {max(lengths) - 1}" if len(lengths) == 1 else name
