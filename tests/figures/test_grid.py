"""Many heads stand side by side in one scale of colours."""

from __future__ import annotations

import io

import numpy as np
import pytest

from attnscope.errors import ShapeError
from attnscope.figures import head_grid
from tests.figures.drawn import cell_colours, is_hatched, matrix, values_of


def heads_of(figure) -> list:
    return [axes for axes in figure.axes if axes.get_images() and axes.get_title()]


@pytest.mark.parametrize("leading", [(5,), (1, 5)])
def test_each_head_of_a_matrix_is_drawn(leading: tuple[int, ...]) -> None:
    A = matrix(*leading, 12, 4)
    shown = heads_of(head_grid(A))
    assert [axes.get_title() for axes in shown] == [f"head {at}" for at in range(5)]
    dense = A[:].reshape(5, 12, 12).numpy()
    for axes, head in zip(shown, dense, strict=True):
        np.testing.assert_allclose(values_of(axes).filled(0.0), head, rtol=1e-5, atol=1e-7)


def test_heads_of_any_length_share_one_scale() -> None:
    heads = [matrix(size, 4) for size in (5, 64, 65, 700)]
    figure = head_grid(heads, labels=["a", "b", "c", "d"])
    shown = heads_of(figure)
    assert [values_of(axes).shape for axes in shown] == [(5, 5), (64, 64), (33, 33), (64, 64)]
    assert [axes.get_title() for axes in shown] == ["a", "b", "c", "d"]
    np.testing.assert_allclose(values_of(shown[3]).filled(0.0), heads[3].pool(64, 64).numpy(), rtol=1e-5)
    assert len({id(axes.get_images()[0].norm) for axes in shown}) == 1
    largest = max(float(values_of(axes).max()) for axes in shown)
    assert shown[0].get_images()[0].norm.vmax == pytest.approx(largest)
    figure.savefig(io.BytesIO())


def test_masked_cells_are_hatched() -> None:
    figure = head_grid(matrix(2, 4, 4))
    for axes in heads_of(figure):
        assert is_hatched(cell_colours(figure, axes, 0, 3, reach=8))
        assert not is_hatched(cell_colours(figure, axes, 3, 0, reach=8))


@pytest.mark.parametrize(("columns", "lines"), [(None, 3), (1, 7), (4, 2), (9, 1)])
def test_columns_are_chosen_and_empty_places_left_out(columns: int | None, lines: int) -> None:
    figure = head_grid(matrix(7, 6, 4), columns=columns)
    shown = heads_of(figure)
    assert len(shown) == 7
    assert len(figure.axes) == 8
    assert len({axes.get_subplotspec().rowspan.start for axes in shown}) == lines


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: head_grid(matrix(2, 3, 6, 4)), ShapeError, r"\.batch\(b\)"),
        (lambda: head_grid([matrix(3, 6, 4)]), ShapeError, r"\.head\(h\)"),
        (lambda: head_grid([]), ShapeError, "empty"),
        (lambda: head_grid(matrix(3, 6, 4), labels=["a"]), ShapeError, "3 labels"),
        (lambda: head_grid(matrix(3, 6, 4), labels="abc"), ShapeError, "3 labels"),
        (lambda: head_grid(matrix(3, 6, 4), columns=0), ValueError, "columns of at least 1, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_do(draw, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw()
