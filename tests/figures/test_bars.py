"""Bars of one query show its weights: all of a short row, the strongest of a long one and the rest."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from attnscope.errors import ShapeError
from attnscope.figures import query_bars
from attnscope.figures.bars import MAX_FULL_ROW, MAX_TOP_KEYS
from attnscope.matrix import AttentionMatrix
from tests.figures.drawn import AWKWARD, cell_colours, is_hatched, matrix


def widths(figure) -> list[float]:
    return [float(bar.get_width()) for group in figure.axes[0].containers for bar in group]


def labels(figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


@pytest.mark.parametrize("position", [0, 7, -1])
def test_a_short_row_is_drawn_in_full_and_in_order(position: int) -> None:
    A = matrix(MAX_FULL_ROW, 8)
    figure = query_bars(A, position)
    np.testing.assert_allclose(widths(figure), A[position].numpy())
    assert labels(figure) == [str(key) for key in range(MAX_FULL_ROW)]
    assert figure.axes[0].get_title() == f"query {position % MAX_FULL_ROW}"


def test_a_masked_key_is_hatched_and_a_zero_is_not() -> None:
    key = torch.tensor([[1.0], [-1.0], [1.0], [1.0]])
    A = AttentionMatrix(torch.full((4, 1), 200.0), key, scale=1.0)
    hidden = matrix(4, 1)
    figure, other = query_bars(A, 2), query_bars(hidden, 2)
    assert A[2, 1] == 0 == hidden[2, 3]
    assert cell_colours(figure, figure.axes[0], 1, 0.2) == {(255, 255, 255)}
    assert is_hatched(cell_colours(other, other.axes[0], 3, 0.2, reach=9))
    assert (len(figure.legends), len(other.legends)) == (0, 1)


def test_a_long_row_shows_its_strongest_keys_first_and_the_rest() -> None:
    A = matrix(300, 8)
    figure = query_bars(A, 250, [f" w{at}" for at in range(300)])
    best = A.topk(MAX_TOP_KEYS)
    shown = widths(figure)
    np.testing.assert_allclose(shown[:-1], best.weights[250].numpy(), rtol=1e-5)
    np.testing.assert_allclose(shown[-1], 1 - float(best.weights[250].sum()), atol=1e-5)
    assert labels(figure)[0] == f"·w{best.keys[250, 0]}  {best.keys[250, 0]}"
    assert labels(figure)[-1] == "all other keys"
    assert figure.axes[0].get_title() == "query 250: ·w250"


def test_top_chooses_how_many() -> None:
    assert len(widths(query_bars(matrix(10, 8), 9, top=3))) == 4
    assert len(widths(query_bars(matrix(10, 8), 9, top=10))) == 10
    assert len(widths(query_bars(matrix(100, 8), 1, top=5))) == 2 + 1, "keys that the query sees, and the rest"


def test_awkward_tokens_are_drawn_without_a_warning() -> None:
    for position in range(len(AWKWARD)):
        query_bars(matrix(len(AWKWARD), 4), position, AWKWARD, top=4).savefig(io.BytesIO())


def test_a_query_that_sees_nothing_has_no_bars() -> None:
    A = AttentionMatrix.from_dense(torch.zeros(100, 100))
    assert widths(query_bars(A, 3)) == [0.0]
    query_bars(AttentionMatrix.from_dense(torch.zeros(5, 5)), 3).savefig(io.BytesIO())


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: query_bars(matrix(3, 6, 4), 0), ShapeError, r"query_bars: .*\.head\(h\)"),
        (lambda: query_bars(matrix(6, 4), 6), IndexError, "0 ... 5"),
        (lambda: query_bars(matrix(6, 4), 0, ["a"]), ShapeError, "6 keys"),
        (lambda: query_bars(matrix(6, 4), 0, top=0), ValueError, "top from 1 to 6"),
        (lambda: query_bars(matrix(6, 4), 0, top=7), ValueError, "top from 1 to 6"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_do(draw, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw()
