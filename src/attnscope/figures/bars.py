"""`query_bars`: the attention weights of one query as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnscope.extras import import_extra
from attnscope.figures.drawing import HATCH_WIDTH, HATCHING, LEGEND, masked_patch, new_figure
from attnscope.figures.picture import select_head, to_numpy
from attnscope.figures.token_labels import check_tokens, format_token
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_FULL_ROW = 40  # keys of a row that is drawn in full
MAX_TOP_KEYS = 20  # keys that are drawn of a longer row
MIN_LABELLED_FRACTION = 0.005  # of the longest bar; shorter bars of a full row have no number
COLOUR, REST_COLOUR = "#31688e", "#9a9a9a"


class Bars(NamedTuple):
    """Keys from top to bottom, their weights, which are masked, and the weight of all other keys."""

    keys: list[int]
    weights: list[float]
    masked: list[bool]
    rest: float | None


def query_bars(
    matrix: AttentionMatrix,
    position: int,
    tokens: Sequence[str] | None = None,
    *,
    query_token: str | None = None,
    top: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the attention weights of one query as bars.

    Rows of up to 40 keys are drawn in full and in order, with masked keys hatched. Of longer rows, or with `top`, the
    keys with the largest weights are drawn, and the sum of all other weights.

    Args:
        matrix: The attention weights of one head, (queries, keys).
        position: The query.
        tokens: One text per key.
        query_token: The text of the query, for the title.
        top: How many keys to draw; 20 by default for a long row.
        title: The title, instead of the query.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: `top` is not between 1 and the number of keys.

    >>> import torch
    >>> figure = query_bars(AttentionMatrix(torch.eye(3), torch.eye(3), scale=9.0), 1, ["The", " cat", " sat"])
    >>> [round(float(bar.get_width()), 3) for bar in figure.axes[0].patches]
    [0.0, 1.0, 0.0]
    """
    matrix = select_head(matrix, "query_bars")
    queries, keys = matrix.shape
    check_tokens(tokens, keys, "keys", "query_bars")
    if top is not None and not 1 <= top <= keys:
        raise ValueError(f"query_bars: expected top from 1 to {keys}, the number of keys, got {top}")
    row = to_numpy(matrix[position])
    position %= queries
    if top is None and keys <= MAX_FULL_ROW:
        masked = to_numpy(matrix.visible_cells(queries, keys)[position] == 0)
        bars = Bars(list(range(keys)), row.tolist(), masked.tolist(), None)
    else:
        bars = _strongest(row, min(top or MAX_TOP_KEYS, keys))
    if query_token is None and tokens is not None and queries == keys:
        query_token = tokens[position]
    figure = new_figure(4.2, 0.9 + 0.155 * (len(bars.keys) + (bars.rest is not None)))
    axes = figure.add_subplot()
    _draw(axes, bars)
    _write(axes, bars, tokens)
    axes.set_title(title or _title(position, query_token), fontsize=9)
    if any(bars.masked):
        figure.legend(handles=[masked_patch()], loc="outside lower right", **LEGEND)
    return figure


def _strongest(row: np.ndarray, count: int) -> Bars:
    """Return the keys with the largest weights above 0, and the sum of the rest."""
    order = np.argsort(-row, kind="stable")[:count]
    order = order[row[order] > 0]
    others = np.delete(row, order)
    return Bars(order.tolist(), row[order].tolist(), [False] * len(order), float(others.sum()) if len(others) else None)


def _draw(axes: Axes, bars: Bars) -> None:
    longest = max([*bars.weights, bars.rest or 0.0]) or 1.0
    places = np.arange(len(bars.keys))
    axes.barh(places, bars.weights, height=0.75, color=COLOUR)
    for place in places[np.array(bars.masked, dtype=bool)]:
        box = import_extra("matplotlib.patches").Rectangle((0, place - 0.5), longest * 1.16, 1.0, **HATCHING)
        box.set_hatch_linewidth(HATCH_WIDTH)
        axes.add_patch(box)
    ends = list(zip(range(len(places)), bars.weights, bars.masked, strict=True))
    if bars.rest is not None:
        axes.barh([len(places)], [bars.rest], height=0.75, color=REST_COLOUR)
        ends.append((len(places), bars.rest, False))
    for place, weight, masked in ends:
        if not masked and (bars.rest is not None or weight >= longest * MIN_LABELLED_FRACTION):
            text = f"{weight:.3f}" if weight >= 0.001 else f"{weight:.1e}"
            axes.text(weight + longest * 0.012, place, text, va="center_baseline", fontsize=6.5, color="#333333")
    axes.set_xlim(0, longest * 1.16)
    axes.set_ylim(len(ends) - 0.5, -0.5)


def _write(axes: Axes, bars: Bars, tokens: Sequence[str] | None) -> None:
    labels = [f"{format_token(tokens[key])}  {key}" if tokens is not None else f"{key}" for key in bars.keys]
    if bars.rest is not None:
        labels.append("all other keys")
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xlabel("attention weight", fontsize=8)
    axes.set_ylabel("key", fontsize=8)
    axes.tick_params(axis="x", labelsize=7, width=0.6, length=2.5)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(linewidth=0.6, color="#444444")


def _title(position: int, token: str | None) -> str:
    return f"query {position}" + (f": {format_token(token)}" if token is not None else "")
