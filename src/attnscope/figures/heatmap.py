"""`heatmap`: the weights of one head, cell by cell while that can be seen, and in bins beyond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.extras import import_extra
from attnscope.figures.drawing import add_scale, colour_scale, new_figure, paint
from attnscope.figures.picture import Picture, one_head, take_picture
from attnscope.figures.token_labels import POINTS, check_tokens, format_token, stride
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LABELLED = 256  # more tokens than these are not written along an axis
SIDES = (2.6, 4.6, 7.0)  # inches of the longer side: at least, without tokens, at most
SHORTEST = 1.4  # inches of the shorter side, so that the scale of colours can be read
INCHES_A_TOKEN = POINTS * 1.1 / 72
INCHES_A_LETTER = 0.055


def heatmap(
    matrix: AttentionMatrix,
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    bins: int = 512,
    how: str = "density",
    scale: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """The weights of one head, (queries, keys), as a figure: queries down, keys to the right, masked cells hatched.

    `tokens` are the keys', and also the queries' where there are as many of both; up to 256 are written along an axis.
    Up to `bins` rows and columns each cell is drawn, and beyond, bins that mean what `how` says, as in `A.pooled`.
    Colours are spread over `limits` by `scale`, "linear" or "log"; by itself it is log above 256 keys.

    >>> import torch
    >>> from attnscope.attention import Causal
    >>> figure = heatmap(AttentionMatrix(torch.eye(3), torch.eye(3), mask=Causal()), ["The", " cat", " sat"])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['The', '·cat', '·sat']
    """
    matrix = one_head(matrix, "heatmap")
    queries, keys = matrix.shape
    check_tokens(tokens, keys, "keys", "heatmap")
    check_tokens(query_tokens, queries, "queries", "heatmap")
    if query_tokens is None and queries == keys:
        query_tokens = tokens
    picture = take_picture(matrix, bins, how)
    down, across = (_labels(found, size) for found, size in ((query_tokens, queries), (tokens, keys)))
    width, height = _inches(picture, down is not None or across is not None)
    room = [INCHES_A_LETTER * max(map(len, labels or ["0000"])) for labels in (down, across)]
    figure = new_figure(width + room[0] + 1.3, height + room[1] + (0.9 if title else 0.6))
    axes = figure.add_subplot()
    image = paint(axes, picture, colour_scale([picture], scale, limits))
    _write(axes.xaxis, across, width, rotation=90)
    _write(axes.yaxis, down, height, rotation=0)
    axes.set_xlabel("key (column)", fontsize=8)
    axes.set_ylabel("query (row)", fontsize=8)
    if title:
        axes.set_title(title, fontsize=9)
    add_scale(figure, image, axes, [picture], how)
    return figure


def _labels(tokens: Sequence[str] | None, length: int) -> list[str] | None:
    return None if tokens is None or length > LABELLED else [format_token(token) for token in tokens]


def _inches(picture: Picture, labelled: bool) -> tuple[float, float]:
    """Width and height of the image."""
    least, plain, most = SIDES
    longer = max(picture.keys, picture.queries)
    side = min(max(longer * INCHES_A_TOKEN, least), most) if labelled else plain
    return max(side * picture.keys / longer, SHORTEST), max(side * picture.queries / longer, SHORTEST)


def _write(axis: Axis, labels: list[str] | None, inches: float, rotation: int) -> None:
    """Write tokens along an axis; where not all have room, each few-th with its position."""
    if labels is None:
        axis.set_major_locator(import_extra("matplotlib.ticker").MaxNLocator(9, integer=True, min_n_ticks=1))
        return
    step = stride(len(labels), inches)
    chosen = range(0, len(labels), step)
    texts = [labels[at] if step == 1 else f"{labels[at]}  {at}" for at in chosen]
    axis.set_ticks(list(chosen), texts, fontsize=POINTS, rotation=rotation)
