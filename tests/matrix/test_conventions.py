"""An AttentionMatrix behaves like a tensor where it looks like one: indexing, moving, numpy, pickling, bytes."""

import pickle

import numpy
import pytest
import torch

from attnscope import AttentionMatrix, Bias, Causal, Padding, Sinks, Softcap, from_bool
from attnscope.errors import ShapeError

QUERY, KEY = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8)
MATRIX = AttentionMatrix(QUERY, KEY, mask=Causal(), score_mod=Softcap(5.0) + Sinks(torch.randn(4)))
EVERYTHING = slice(None)


@pytest.mark.parametrize(
    "key",
    [
        (0, 1, slice(2, 5), EVERYTHING),
        (-1, -1, -1, -1),
        (1, 3, 2, [0, 2, 5]),
        (0, 1, 2),
        (0, slice(1, 3), 2),
        (slice(0, 1), slice(1, 3), 2, slice(3, 9, 2)),
        (EVERYTHING, 2, slice(None, None, 3), 0),
        (Ellipsis, 3),
        (Ellipsis, 2, 3),
        (1, Ellipsis),
        (0, Ellipsis, 2),
        (0, 1, Ellipsis, 2, 3),
        Ellipsis,
        EVERYTHING,
        (EVERYTHING, EVERYTHING),
    ],
    ids=str,
)
def test_indexing_is_that_of_the_dense_tensor(key: object) -> None:
    got, wanted = MATRIX[key], MATRIX.to_dense()[key]  # pyright: ignore[reportArgumentType]
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(MATRIX.T[key], MATRIX.T.to_dense()[key])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("key", [0, (0, 1), slice(2, 4), (0, 0, 0, 0, 0), (Ellipsis, 0, Ellipsis)], ids=str)
def test_an_index_that_leaves_axes_open_is_an_error(key: object) -> None:
    with pytest.raises(ShapeError, match=r"batch, head, query, key.*\.batch\(b\)\.head\(h\)"):
        MATRIX[key]  # pyright: ignore[reportArgumentType]


def test_a_plain_matrix_is_read_by_rows() -> None:
    head = MATRIX.batch(1).head(2)
    torch.testing.assert_close(head[3], head.to_dense()[3])
    with pytest.raises(ShapeError, match="batch and head, got list"):
        MATRIX[[0, 1], 0, 0, 0]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="got 3"):
        head[0, 1, 2]


def test_no_mask_is_a_full_mask() -> None:
    assert torch.equal(AttentionMatrix(QUERY, KEY, mask=None).to_dense(), AttentionMatrix(QUERY, KEY).to_dense())


def test_another_dtype_gives_the_weights_of_that_dtype() -> None:
    held = AttentionMatrix(QUERY, KEY, mask=Padding(keep=torch.ones(2, 9, dtype=torch.bool)), value=KEY)
    _ = held.lse
    wide = held.to(torch.float64)
    assert (wide.dtype, held.dtype, wide.cpu().dtype) == (torch.float64, torch.float32, torch.float64)
    right = AttentionMatrix(QUERY.double(), KEY.double(), value=KEY.double())
    torch.testing.assert_close(wide.to_dense(), right.to_dense())
    torch.testing.assert_close(wide.lse, right.lse)
    torch.testing.assert_close(wide.value_weighted().to_dense(), right.value_weighted().to_dense())
    rounded = held.to(dtype=torch.bfloat16)
    assert rounded.nbytes < 0.6 * held.nbytes
    with pytest.raises(TypeError, match="floating"):
        held.to(torch.int64)
    dense = AttentionMatrix.from_dense(held.to_dense())
    assert dense.to("cpu", torch.float64).dtype == torch.float64


def test_every_tensor_moves_to_another_device() -> None:
    mask = from_bool(attend=torch.ones(9, 9, dtype=torch.bool)) & Padding(keep=torch.ones(2, 9, dtype=torch.bool))
    moved = AttentionMatrix(QUERY, KEY, mask=mask, score_mod=Bias(torch.randn(9, 9)), value=KEY).to("meta")
    assert moved.device.type == "meta"
    assert {tensor.device.type for tensor in moved._source.tensors()} == {"meta"}


def test_numpy_takes_a_small_matrix() -> None:
    head = MATRIX.batch(0).head(0)
    assert numpy.array_equal(numpy.asarray(head), head.to_dense().numpy())
    assert numpy.asarray(head, dtype=numpy.float64).dtype == numpy.float64
    long = torch.randn(20_000, 4)
    with pytest.raises(ShapeError, match="dense block"):
        numpy.asarray(AttentionMatrix(long, long))


def test_the_normalisers_are_a_copy() -> None:
    matrix = AttentionMatrix(QUERY, KEY, mask=Causal())
    before = matrix.to_dense()
    matrix.lse.zero_()
    torch.testing.assert_close(matrix.to_dense(), before)
    torch.testing.assert_close(matrix[0, 0, 3].sum(), torch.tensor(1.0))


def test_a_pickled_matrix_has_the_same_weights() -> None:
    again = pickle.loads(pickle.dumps(MATRIX))
    assert torch.equal(again.to_dense(), MATRIX.to_dense())


def test_bytes_count_masks_and_biases_once() -> None:
    plain = AttentionMatrix(QUERY, KEY).nbytes
    bias = torch.randn(9, 9)
    assert plain == QUERY.nbytes + KEY.nbytes
    assert AttentionMatrix(QUERY, KEY, score_mod=Bias(bias)).nbytes == plain + bias.nbytes
    assert AttentionMatrix(QUERY, KEY, score_mod=Bias(bias) + Bias(bias)).nbytes == plain + bias.nbytes
    mask = from_bool(attend=torch.ones(9, 9, dtype=torch.bool))
    assert AttentionMatrix(QUERY, KEY, mask=mask).nbytes == plain + 81
    assert AttentionMatrix(QUERY, QUERY).nbytes == QUERY.nbytes
