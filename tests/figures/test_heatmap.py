"""Heatmaps show the numbers of the matrix, hidden cells apart from zeros, and tokens as they are."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm

from attnscope.attention import Causal, Window
from attnscope.errors import ShapeError
from attnscope.figures import heatmap
from attnscope.matrix import AttentionMatrix
from tests.figures.drawn import AWKWARD, cell_colours, is_hatched, matrix, values_of

WITHOUT_PYPLOT = """
import io, sys, torch
from attnscope.figures import head_grid, heatmap, query_bars
from attnscope.matrix import AttentionMatrix
matrix = AttentionMatrix(torch.randn(6, 4), torch.randn(6, 4))
for figure in (heatmap(matrix), query_bars(matrix, 2), head_grid([matrix])):
    figure.savefig(io.BytesIO(), format="svg")
    figure.savefig(io.BytesIO(), format="png")
assert "matplotlib.pyplot" not in sys.modules
"""


def test_every_cell_of_a_small_matrix_is_drawn() -> None:
    A = matrix(20, 8)
    shown = values_of(heatmap(A).axes[0])
    np.testing.assert_allclose(shown.filled(0.0), A[:].numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~np.tri(20, dtype=bool))


@pytest.mark.parametrize("how", ["density", "mass", "max"])
def test_a_long_matrix_is_drawn_in_bins_along_its_positions(how: str) -> None:
    A = matrix(5000, 4, mask=Causal() & Window(2000))
    figure = heatmap(A, reduction=how)
    axes = figure.axes[0]
    shown = values_of(axes)
    assert shown.shape == (500, 500)
    np.testing.assert_allclose(shown.filled(0.0), A.pool(500, 500, reduction=how).numpy(), rtol=1e-5)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), A.visible_cells(500, 500).numpy() == 0)
    (image,) = axes.get_images()
    assert image.get_extent() == [-0.5, 4999.5, 4999.5, -0.5]
    assert isinstance(image.norm, LogNorm)
    assert "attention weight" in figure.axes[1].get_ylabel() != "attention weight"


def test_queries_go_down_and_keys_to_the_right() -> None:
    axes = heatmap(AttentionMatrix.from_dense(torch.tensor([[0.2, 0.8, 0.0], [0.4, 0.5, 0.1]]))).axes[0]
    assert axes.get_xlim() == (-0.5, 2.5)
    assert axes.get_ylim() == (1.5, -0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key (column)", "query (row)")


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_masked_cell_is_hatched_and_a_zero_has_the_lowest_colour(scale: str) -> None:
    key = torch.tensor([[1.0], [-1.0], [1.0], [1.0]])
    A = AttentionMatrix(torch.full((4, 1), 200.0), key, mask=Causal(), scale=1.0)
    assert A[2, 1] == 0 == A[1, 2]
    figure = heatmap(A, scale=scale)
    axes = figure.axes[0]
    (image,) = axes.get_images()
    lowest = tuple(round(255 * part) for part in image.get_cmap()(0)[:3])
    assert cell_colours(figure, axes, 2, 1) == {lowest}
    assert is_hatched(cell_colours(figure, axes, 1, 2, reach=12))
    assert not is_hatched({lowest})
    assert len(cell_colours(figure, axes, 1, 2, reach=12)) > 1


def test_hatching_is_named_where_there_is_any() -> None:
    def names(figure) -> list[str]:
        return [text.get_text() for axes in figure.axes if axes.legend_ for text in axes.legend_.get_texts()]

    assert names(heatmap(matrix(9, 4))) == ["masked"]
    assert names(heatmap(AttentionMatrix(torch.randn(9, 4), torch.randn(9, 4)))) == []


def test_tokens_stand_along_both_axes_of_a_square_matrix() -> None:
    figure = heatmap(matrix(3, 4), ["a", " b", "\n"])
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [label.get_text() for label in labels] == ["a", "·b", "↵"]


def test_queries_and_keys_have_tokens_of_their_own() -> None:
    A = AttentionMatrix(torch.randn(2, 4), torch.randn(3, 4))
    axes = heatmap(A, ["a", "b", "c"], query_tokens=["x", "y"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]


def test_many_tokens_are_thinned_out_and_numbered_and_very_many_left_out() -> None:
    labels = heatmap(matrix(200, 4), ["w"] * 200).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels][:3] == ["w  0", "w  5", "w  10"]
    labels = heatmap(matrix(257, 4), ["w"] * 257).axes[0].get_xticklabels()
    assert not any("w" in label.get_text() for label in labels)


def test_awkward_tokens_are_drawn_without_a_warning() -> None:
    figure = heatmap(matrix(len(AWKWARD), 4), AWKWARD)
    for kind in ("png", "svg"):
        figure.savefig(io.BytesIO(), format=kind)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 900), (900, 1), (30, 600)])
def test_any_shape_is_drawn(rows: int, columns: int) -> None:
    figure = heatmap(AttentionMatrix(torch.randn(rows, 4), torch.randn(columns, 4)), title="any")
    figure.savefig(io.BytesIO())
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_yticks())


def test_a_row_and_a_matrix_without_keys_are_all_hatched() -> None:
    figure = heatmap(AttentionMatrix(torch.randn(4, 2), torch.randn(4, 2), mask=Causal() & ~Causal()))
    assert np.ma.getmaskarray(values_of(figure.axes[0])).all()
    figure.savefig(io.BytesIO())


def test_limits_set_the_scale_and_leave_the_numbers() -> None:
    A = matrix(9, 4)
    (image,) = heatmap(A, limits=(0.0, 0.5)).axes[0].get_images()
    assert (image.norm.vmin, image.norm.vmax) == (0.0, 0.5)
    np.testing.assert_allclose(np.ma.asarray(image.get_array()).filled(0.0), A[:].numpy(), rtol=1e-5, atol=1e-7)


def test_leading_axes_of_one_are_no_obstacle() -> None:
    A = matrix(1, 1, 6, 4)
    np.testing.assert_array_equal(values_of(heatmap(A).axes[0]), values_of(heatmap(A.batch(0).head(0)).axes[0]))


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: heatmap(matrix(2, 3, 6, 4)), ShapeError, r"leading axes \(2, 3\).*\.batch\(b\)\.head\(h\)"),
        (lambda: heatmap(matrix(3, 6, 4)), ShapeError, r"leading axes \(3,\).*\.head\(h\)"),
        (lambda: heatmap(torch.eye(3)), ShapeError, "from_dense"),  # pyright: ignore[reportArgumentType]
        (lambda: heatmap(matrix(6, 4), ["a"]), ShapeError, "6 tokens for the 6 keys, got 1"),
        (lambda: heatmap(matrix(6, 4), "abcdef"), ShapeError, "got one string"),
        (lambda: heatmap(matrix(6, 4), query_tokens=["a"]), ShapeError, "6 queries"),
        (lambda: heatmap(matrix(6, 4), bins=0), ValueError, "bins of at least 1, got 0"),
        (lambda: heatmap(matrix(6, 4), reduction="mean"), ValueError, "reduction .*'mean'"),
        (lambda: heatmap(matrix(6, 4), scale="sqrt"), ValueError, "scale=.*'sqrt'"),
        (lambda: heatmap(matrix(6, 4), limits=(1.0, 0.0)), ValueError, "limits"),
        (lambda: heatmap(matrix(6, 4), scale="log", limits=(0.0, 1.0)), ValueError, "limits above 0"),
        (lambda: heatmap(AttentionMatrix(torch.full((3, 2), torch.nan), torch.ones(3, 2))), ValueError, "NaN"),
        (
            lambda: heatmap(AttentionMatrix(torch.ones(0, 2), torch.ones(3, 2))),
            ShapeError,
            "at least one query and one key",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_do(draw, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw()


def test_pyplot_is_not_needed() -> None:
    answer = subprocess.run([sys.executable, "-c", WITHOUT_PYPLOT], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
