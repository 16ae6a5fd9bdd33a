"""`heatmap`: the attention pattern of one head, as cells or as bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.extras import import_extra
from attnscope.figures.drawing import add_colour_bar, draw_picture, make_norm, new_figure
from attnscope.figures.picture import Picture, make_picture, select_head
from attnscope.figures.token_labels import POINTS, check_tokens, format_token, label_step
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MAX_LABELS = 256  # tokens along an axis
SIDE_INCHES = (2.6, 4.6, 7.0)  # of the longer side: minimum, without tokens, maximum
MIN_SIDE_INCHES = 1.4  # of the shorter side, so that the colour bar can be read
TOKEN_INCHES = POINTS * 1.1 / 72
LETTER_INCHES = 0.055


def heatmap(
    matrix: AttentionMatrix,
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    bins: int = 512,
    reduction: str = "density",
    scale: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the attention pattern of one head: queries down, keys to the right, masked cells hatched.

    Args:
        matrix: The attention weights of one head, (queries, keys).
        tokens: One text per key, also used for the queries if there are as many. Up to 256 are drawn along an axis.
        query_tokens: One text per query.
        bins: Larger matrices are pooled to at most this number of rows and columns.
        reduction: What a bin shows: "density" (mean weight), "mass" (sum) or "max", as in `AttentionMatrix.pool`.
        scale: "linear" or "log" colours; by default log above 256 keys.
        limits: The lowest and highest value of the colour scale.
        title: The title of the figure.

    Returns:
        A matplotlib figure.

    >>> import torch
    >>> from attnscope.attention import Causal
    >>> figure = heatmap(AttentionMatrix(torch.eye(3), torch.eye(3), mask=Causal()), ["The", " cat", " sat"])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['The', '·cat', '·sat']
    """
    matrix = select_head(matrix, "heatmap")
    queries, keys = matrix.shape
    check_tokens(tokens, keys, "keys", "heatmap")
    check_tokens(query_tokens, queries, "queries", "heatmap")
    if query_tokens is None and queries == keys:
        query_tokens = tokens
    picture = make_picture(matrix, bins, reduction)
    down, across = (_labels(found, size) for found, size in ((query_tokens, queries), (tokens, keys)))
    width, height = _inches(picture, down is not None or across is not None)
    room = [LETTER_INCHES * max(map(len, labels or ["0000"])) for labels in (down, across)]
    figure = new_figure(width + room[0] + 1.3, height + room[1] + (0.9 if title else 0.6))
    axes = figure.add_subplot()
    image = draw_picture(axes, picture, make_norm([picture], scale, limits))
    _write(axes.xaxis, across, width, rotation=90)
    _write(axes.yaxis, down, height, rotation=0)
    axes.set_xlabel("key (column)", fontsize=8)
    axes.set_ylabel("query (row)", fontsize=8)
    if title:
        axes.set_title(title, fontsize=9)
    add_colour_bar(figure, image, axes, [picture], reduction)
    return figure


def _labels(tokens: Sequence[str] | None, length: int) -> list[str] | None:
    return None if tokens is None or length > MAX_LABELS else [format_token(token) for token in tokens]


def _inches(picture: Picture, labelled: bool) -> tuple[float, float]:
    """Return width and height of the image."""
    least, plain, most = SIDE_INCHES
    longer = max(picture.keys, picture.queries)
    side = min(max(longer * TOKEN_INCHES, least), most) if labelled else plain
    return max(side * picture.keys / longer, MIN_SIDE_INCHES), max(side * picture.queries / longer, MIN_SIDE_INCHES)


def _write(axis: Axis, labels: list[str] | None, inches: float, rotation: int) -> None:
    """Draw tokens along an axis; if not all fit, every few tokens with their positions."""
    if labels is None:
        axis.set_major_locator(import_extra("matplotlib.ticker").MaxNLocator(9, integer=True, min_n_ticks=1))
        return
    step = label_step(len(labels), inches)
    chosen = range(0, len(labels), step)
    texts = [labels[at] if step == 1 else f"{labels[at]}  {at}" for at in chosen]
    axis.set_ticks(list(chosen), texts, fontsize=POINTS, rotation=rotation)
