"""`score_maps`: a number by two variables, as one small map for each of several names, in one colour scale.

In: numbers (names, rows, columns). Out: a figure. Does not know: what was measured. Memory: that of the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnscope.errors import ShapeError
from attnscope.figures.drawing import COLOURS, HATCHING, new_figure
from attnscope.figures.panel import LARGE, POINTS, SMALL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP_INCHES = 1.35
MAX_COLUMNS = 5


def score_maps(
    values: np.ndarray,
    *,
    titles: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    ylabel: str,
    xlabel: str,
    colour_label: str,
    title: str | None = None,
) -> Figure:
    """Draw one small map per name.

    Args:
        values: Numbers from 0 to 1, (names, rows, columns); NaN is hatched.
        titles: A title for each map.
        rows: The labels of the rows, from top to bottom.
        columns: The labels of the columns.
        ylabel: The label of the y axes.
        xlabel: The label of the x axes.
        colour_label: The label of the colour scale.
        title: The title of the figure.

    Returns:
        A matplotlib figure.

    Raises:
        ShapeError: The numbers of titles or labels do not fit the values.

    >>> figure = score_maps(np.eye(2)[None], titles=["18.6"], rows=["0", "1"], columns=["512", "1,024"],
    ...     ylabel="depth", xlabel="tokens", colour_label="score")
    >>> figure.axes[0].get_title()
    '18.6'
    """
    values = np.asarray(values, dtype=float)
    if values.shape != (len(titles), len(rows), len(columns)) or not values.size:
        raise ShapeError(
            f"score_maps: expected numbers {(len(titles), len(rows), len(columns))}, (titles, rows, columns), got "
            f"{values.shape}"
        )
    wide = min(len(titles), MAX_COLUMNS)
    high = math.ceil(len(titles) / wide)
    figure = new_figure(wide * MAP_INCHES + 1.3, high * (MAP_INCHES + 0.25) + 0.5 + 0.25 * bool(title))
    grid = figure.subplots(high, wide, squeeze=False, sharex=True, sharey=True)
    for place in grid.flat[len(titles) :]:
        place.remove()
    shown, image = list(grid.flat[: len(titles)]), None
    for axes, name, numbers in zip(shown, titles, values, strict=True):
        axes.patch.set(facecolor=HATCHING["facecolor"], edgecolor=HATCHING["edgecolor"], hatch=HATCHING["hatch"])
        image = axes.imshow(np.ma.masked_invalid(numbers), vmin=0.0, vmax=1.0, cmap=COLOURS, aspect="auto")
        axes.set_title(name, fontsize=POINTS, pad=3, parse_math=False)
        axes.set_xticks(range(len(columns)), columns, rotation=90)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(labelsize=SMALL, length=2, labelbottom=True)
    figure.supxlabel(xlabel, fontsize=POINTS)
    figure.supylabel(ylabel, fontsize=POINTS)
    assert image is not None, "there is at least one map"
    bar = figure.colorbar(image, ax=shown, shrink=0.8, pad=0.02)
    bar.set_label(colour_label, fontsize=POINTS)
    bar.ax.tick_params(labelsize=SMALL)
    if title:
        figure.suptitle(title, fontsize=LARGE)
    return figure
