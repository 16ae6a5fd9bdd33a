"""`query_bars`: where one query looks, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnscope.extras import import_extra
from attnscope.figures.drawing import HATCH_WIDTH, HATCHING, LEGEND, masked_sample, new_figure
from attnscope.figures.picture import array, one_head
from attnscope.figures.token_labels import check_tokens, format_token
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHOLE_ROW = 40  # keys of a row that is drawn in full
STRONGEST = 20  # keys of a longer one
MIN_WRITTEN = 0.005  # of the longest bar: in a row drawn in full, what is too short to be seen has no number either
COLOUR, REST_COLOUR = "#31688e", "#9a9a9a"


class Bars(NamedTuple):
    """Keys from top to bottom, the weight of each, which of them are masked, and the weight of all other keys."""

    keys: list[int]
    weights: list[float]
    hidden: list[bool]
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
    """One row of the weights of one head, (queries, keys), as bars: all keys in order, or the `top` strongest first.

    Rows of up to 40 keys are drawn in full, masked keys hatched. Of longer ones, or with `top`, the strongest keys (20)
    are drawn with their positions, and the weight of all others together.

    >>> import torch
    >>> figure = query_bars(AttentionMatrix(torch.eye(3), torch.eye(3), scale=9.0), 1, ["The", " cat", " sat"])
    >>> [round(float(bar.get_width()), 3) for bar in figure.axes[0].patches]
    [0.0, 1.0, 0.0]
    """
    matrix = one_head(matrix, "query_bars")
    queries, keys = matrix.shape
    check_tokens(tokens, keys, "keys", "query_bars")
    if top is not None and not 1 <= top <= keys:
        raise ValueError(f"query_bars(top={top}): shows between 1 and {keys} keys, as many as there are")
    row = array(matrix[position])
    position %= queries
    if top is None and keys <= WHOLE_ROW:
        hidden = array(matrix.visible_cells(queries, keys)[position] == 0)
        bars = Bars(list(range(keys)), row.tolist(), hidden.tolist(), None)
    else:
        bars = _strongest(row, min(top or STRONGEST, keys))
    if query_token is None and tokens is not None and queries == keys:
        query_token = tokens[position]
    figure = new_figure(4.2, 0.9 + 0.155 * (len(bars.keys) + (bars.rest is not None)))
    axes = figure.add_subplot()
    _draw(axes, bars)
    _write(axes, bars, tokens)
    axes.set_title(title or _title(position, query_token), fontsize=9)
    if any(bars.hidden):
        figure.legend(handles=[masked_sample()], loc="outside lower right", **LEGEND)
    return figure


def _strongest(row: np.ndarray, count: int) -> Bars:
    """The strongest keys that have any weight, and the rest."""
    order = np.argsort(-row, kind="stable")[:count]
    order = order[row[order] > 0]
    others = np.delete(row, order)
    return Bars(order.tolist(), row[order].tolist(), [False] * len(order), float(others.sum()) if len(others) else None)


def _draw(axes: Axes, bars: Bars) -> None:
    longest = max([*bars.weights, bars.rest or 0.0]) or 1.0
    places = np.arange(len(bars.keys))
    axes.barh(places, bars.weights, height=0.75, color=COLOUR)
    for place in places[np.array(bars.hidden, dtype=bool)]:
        box = import_extra("matplotlib.patches").Rectangle((0, place - 0.5), longest * 1.16, 1.0, **HATCHING)
        box.set_hatch_linewidth(HATCH_WIDTH)
        axes.add_patch(box)
    ends = list(zip(range(len(places)), bars.weights, bars.hidden, strict=True))
    if bars.rest is not None:
        axes.barh([len(places)], [bars.rest], height=0.75, color=REST_COLOUR)
        ends.append((len(places), bars.rest, False))
    for place, weight, hidden in ends:
        if not hidden and (bars.rest is not None or weight >= longest * MIN_WRITTEN):
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
