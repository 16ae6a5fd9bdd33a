"""A picture has the numbers of its matrix, in cells or in bins."""

from __future__ import annotations

import pytest
import torch

from attnscope.figures.picture import bin_count, make_picture
from attnscope.matrix import AttentionMatrix
from tests.figures.drawn import matrix


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 1000, 100_001])
def test_bins_are_as_many_as_asked_or_fewer_and_of_one_width(length: int) -> None:
    count = bin_count(length, 64)
    width = -(-length // count)
    assert count <= 64
    assert (count - 1) * width < length <= count * width


def test_a_picture_is_exact_while_each_bin_is_a_cell() -> None:
    A = matrix(30, 4)
    assert make_picture(A, 30, "max").exact
    assert not make_picture(A, 29, "max").exact
    assert make_picture(A, 30, "density").values == pytest.approx(A[:].numpy(), abs=1e-6)


def test_seen_leaves_out_what_is_hidden() -> None:
    assert len(make_picture(matrix(10, 4), 64, "density").unmasked) == 55


def test_double_precision_is_kept() -> None:
    query = torch.randn(5, 4, dtype=torch.float64)
    assert make_picture(AttentionMatrix(query, query), 64, "density").values.dtype == "float64"
