"""AttentionMatrix in use: how it prints, what it refuses, budgets, progress and cancellation."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from attnscope.attention import Bias, Causal, Documents, Padding, Sinks, Softcap
from attnscope.attention.algebra import Sizes
from attnscope.errors import Cancelled, ShapeError, UnsupportedError
from attnscope.matrix import AttentionMatrix
from tests.devices.sizes import set_block_sizes
from tests.largest import LargestTensor


def matrix(*shape: int, **options) -> AttentionMatrix:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(*shape, generator=generator) for _ in range(2))
    return AttentionMatrix(query, key, mask=Causal(), **options)


def test_it_says_what_it_holds_and_what_dense_would_take() -> None:
    assert repr(matrix(8192, 64)) == "AttentionMatrix(8,192 x 8,192, holds 4.19 MB, dense 268 MB)"
    many = matrix(2, 3, 100, 8)
    assert repr(many) == "AttentionMatrix(100 x 100, leading (2, 3), holds 38.4 kB, dense 240 kB)"
    _ = many.lse
    assert "holds 40.8 kB" in repr(many)


def test_shapes_follow_the_leading_axes() -> None:
    whole = matrix(2, 3, 20, 8)
    assert whole.shape == (2, 3, 20, 20)
    assert whole.head(1).shape == (2, 20, 20)
    assert whole.batch(1).shape == (3, 20, 20)
    assert whole.batch(1).head(-1).shape == whole.head(-1).batch(1).shape == (20, 20)
    assert whole[..., 2, :].shape == (2, 3, 20)
    assert whole[..., 2, 3].shape == (2, 3)
    assert whole[..., [1, 2], :4].shape == (2, 3, 2, 4)
    assert whole[..., ::-1, torch.arange(20) > 17].shape == (2, 3, 20, 2)
    assert torch.equal(whole[..., ::-1, :], whole[:].flip(-2))
    assert matrix(20, 8)[3, 2].shape == ()


def test_normalisers_are_kept_and_shared_with_heads() -> None:
    whole = matrix(1, 3, 50, 8)
    before, first = whole.nbytes, whole.lse
    assert whole.nbytes == before + first.nbytes
    torch.testing.assert_close(whole.head(2).lse, first[:, 2])


def test_a_block_alone_does_not_compute_all_normalisers() -> None:
    whole = matrix(1, 1, 50, 8)
    torch.testing.assert_close(whole[..., 10:20, :30], matrix(1, 1, 50, 8).to_dense()[..., 10:20, :30])
    assert "holds 3.2 kB" in repr(whole)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda a: a[1], ShapeError, r"batch, head, query, key.*got 1"),
        (lambda a: a[..., 20, :], IndexError, r"rows in 0 ... 19, got 20"),
        (lambda a: a[..., [0, -21]], IndexError, r"columns in 0 ... 19, got -21"),
        (lambda a: a[..., torch.ones(3) > 0, :], ShapeError, r"20 booleans for rows"),
        (lambda a: a[..., [[0, 1]], :], ShapeError, r"list of ints for rows"),
        (lambda a: a @ torch.ones(19), ShapeError, r"\(20,\) or \(..., 20, width\), got \(19,\)"),
        (lambda a: a @ torch.ones(5, 20, 2), ShapeError, r"\(2, 3\), got \(5,\)"),
        (lambda a: a.head(3), IndexError, r"head\(3\)"),
        (lambda a: a.head(0).head(0), ShapeError, r"no head axis"),
        (lambda a: a.batch(0).batch(0), ShapeError, r"no batch axis"),
        (lambda a: a.renyi_entropy(1.0), ValueError, r"order.*entropy\(\)"),
        (lambda a: a.topk(21), ValueError, r"1 ... 20, got 21"),
        (lambda a: a.pool(21, 5), ValueError, r"1 ... 20 bins.*got 21"),
        (lambda a: a.pool(5, 5, "mean"), ValueError, r"density, mass, max.*'mean'"),
        (lambda a: a.T.pool(5, 5, "mass"), UnsupportedError, r"reduction='mass'"),
        (lambda a: a.T.entropy(), AttributeError, r"A.T.entropy"),
        (lambda a: a.value_weighted(), ShapeError, r"value="),
        (lambda a: a.merge_tokens([(0, 3), (4, 20)]), ShapeError, r"0 to 20 without gaps"),
        (lambda a: a.at([0, 1], [2]), ShapeError, r"got 2 and 1"),
        (lambda a: a.with_options(max_bytes=1000), ValueError, r"max_bytes.*got 1000"),
        (lambda a: a.sample(4, 4, rows_per_bin=0), ValueError, r"rows_per_bin"),
        (lambda a: AttentionMatrix.from_dense(a[:]).lse, UnsupportedError, r"from_dense"),
        (lambda a: AttentionMatrix.from_dense(torch.ones(3)), ShapeError, r"\(..., queries, keys\)"),
    ],
)
def test_what_cannot_be_answered_is_refused(use, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use(matrix(2, 3, 20, 8))


def test_a_huge_dense_block_is_refused_unless_told() -> None:
    huge = matrix(10_000, 8)
    with pytest.raises(ShapeError, match=r"10,000 x 10,000 cells takes 400,000,000 bytes, more than 268,435,456"):
        huge.to_dense()
    with pytest.raises(ShapeError, match=r"pool\(\)"):
        huge[:, :9000]
    assert matrix(100, 8).to_dense(limit=40_000).shape == (100, 100)


@pytest.mark.parametrize("score", [None, Softcap(3.0)], ids=["fused", "streaming"])
def test_work_stays_within_its_budget(score) -> None:
    budget, length = 2**22, 2500  # dense weights of one head take 25 MB
    small = matrix(1, 2, length, 16, score_mod=score).with_options(max_bytes=budget)
    with LargestTensor() as largest:
        _ = small.lse, small.entropy(exact=True), small.received(), small.distance(), small.topk(3)
        _ = small.pool(64, 64), small.pool(64, 64, "max"), small @ torch.ones(length)
    assert largest.bytes <= budget


@pytest.mark.parametrize("score", [None, Softcap(3.0)], ids=["fused", "streaming"])
@pytest.mark.parametrize(
    "operation", ["lse", "entropy", "received", "distance", "pooled", "largest", "topk", "sample", "product"]
)
def test_progress_rises_to_one(operation: str, score, monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_sizes(monkeypatch, step_cells=2**20)
    reports: list[float] = []
    watched = matrix(1, 1, 3000, 8, score_mod=score).with_options(max_bytes=2**20, progress=reports.append)
    run(watched, operation)
    assert len(reports) > 1
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1.0)


def run(subject: AttentionMatrix, operation: str) -> object:
    calls = {
        "lse": lambda: subject.lse,
        "entropy": subject.entropy,
        "received": subject.received,
        "distance": subject.distance,
        "pooled": lambda: subject.pool(8, 8, "mass"),
        "largest": lambda: subject.pool(8, 8, "max"),
        "topk": lambda: subject.topk(2),
        "sample": lambda: subject.sample(400, 8),
        "product": lambda: subject @ torch.ones(subject.shape[-1], 20),
    }
    return calls[operation]()


@pytest.mark.timed
@pytest.mark.parametrize("score", [None, Softcap(3.0)], ids=["fused", "streaming"])
@pytest.mark.parametrize("operation", ["entropy", "received", "distance", "pooled"])
def test_a_running_reduction_stops_within_half_a_second_and_leaves_the_matrix_usable(operation: str, score) -> None:
    subject = matrix(1, 1, 60_000, 64, score_mod=score)
    stop = threading.Event()
    stopped_after: list[float] = []

    def work() -> None:
        try:
            run(subject.with_options(should_stop=stop.is_set), operation)
        except Cancelled:
            stopped_after.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1.0)
    asked = time.perf_counter()
    stop.set()
    thread.join()
    assert stopped_after, "the work was over before it could be stopped"
    assert stopped_after[0] - asked < 0.5
    torch.testing.assert_close(subject[100, :101].sum(), torch.tensor(1.0))


def test_the_error_of_a_sample_is_about_right() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (2 * torch.randn(4000, 16, generator=generator) for _ in range(2))
    subject = AttentionMatrix(query, key, mask=Causal())
    exact = subject.pool(20, 20)
    estimate = subject.sample(20, 20, rows_per_bin=50)
    seen = subject.visible_cells(20, 20) > 0
    off = (estimate.density - exact)[seen].abs() / estimate.error[seen]
    assert 0.4 < float((off < 1).float().mean()) < 0.9  # two thirds within one standard error
    assert float((off < 3).float().mean()) > 0.95
    assert (subject.sample(20, 20, rows_per_bin=1000).error == 0).all()


def test_one_head_of_several_batch_rows_keeps_them_apart() -> None:
    whole = matrix(3, 2, 20, 8)
    dense = whole.to_dense()
    values, own = torch.randn(20, 4), torch.randn(3, 20, 4)
    for part, right in ((whole.head(1), dense[:, 1]), (whole.batch(2), dense[2])):
        torch.testing.assert_close(part @ values, right @ values)
        torch.testing.assert_close(part.T @ values, right.mT @ values)
        torch.testing.assert_close(part.mass([1, 2]), right[..., [1, 2]].sum(-1))
    torch.testing.assert_close(whole.head(1) @ own, dense[:, 1] @ own)


def test_trained_parameters_in_scores_leave_no_graph() -> None:
    for score in (Sinks(torch.nn.Parameter(torch.randn(2))), Bias(torch.nn.Parameter(torch.randn(2, 20, 20)))):
        subject = matrix(1, 2, 20, 8, score_mod=score)
        assert not subject.lse.requires_grad
        assert not subject[..., 3, :].requires_grad
        torch.testing.assert_close(subject.received(), subject.to_dense().sum(-2))
        torch.testing.assert_close(subject.pool(1, 1, "max").flatten(), subject.to_dense().amax((-1, -2)).flatten())


def test_autocast_does_not_reach_inside() -> None:
    for score in (None, Softcap(3.0)):
        plain, surrounded = matrix(1, 2, 50, 8, score_mod=score), matrix(1, 2, 50, 8, score_mod=score)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = (surrounded.to_dense(), surrounded.lse, surrounded.pool(5, 5), surrounded.T @ torch.ones(50))
        for got, right in zip(
            found, (plain.to_dense(), plain.lse, plain.pool(5, 5), plain.T @ torch.ones(50)), strict=True
        ):
            assert torch.equal(got, right)


def test_one_length_for_all_batch_rows_survives_narrowing() -> None:
    whole = AttentionMatrix(torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4), mask=Padding([3]))
    torch.testing.assert_close(whole.batch(1).to_dense(), whole.to_dense()[1])
    torch.testing.assert_close(whole.batch(1).entropy(), whole.entropy()[1])


def test_masks_without_structure_and_scattered_cells_stay_small() -> None:
    n = 6000
    query, key = torch.randn(1, 4, n, 16), torch.randn(1, 4, n, 16)
    scattered = Causal() & Documents(torch.randint(0, 50, (n,)))
    subject = AttentionMatrix(query, key, mask=scattered).with_options(max_bytes=2**24)
    thirds = [(0, 2000), (2000, 4000), (4000, n)]
    with LargestTensor() as largest:
        visible = subject.visible_cells(3, 3)
        _ = subject.band(32), subject.head(0).merge_tokens(thirds).to_dense()
    assert largest.bytes <= 4 * 2**24
    assert visible[0, 0].sum() == scattered.to_dense(Sizes(1, 4, n, n)).sum()


def test_counts_are_whole_numbers() -> None:
    keep = torch.rand(1, 20_000) > 0.1
    subject = AttentionMatrix(
        torch.zeros(1, 1, 20_000, 2), torch.zeros(1, 1, 20_000, 2), mask=Causal() & Padding(keep=keep)
    )
    assert subject.visible_cells(1, 1).item() == int(keep.cumsum(-1).sum())


def test_held_weights_are_read_as_they_are() -> None:
    weights = torch.rand(2, 3, 7, 9)
    held = AttentionMatrix.from_dense(weights)
    assert torch.equal(held[:], weights)
    assert torch.equal(held.at([1, 2], [3, 4]), weights[..., [1, 2], [3, 4]])
    with pytest.raises(ValueError, match="at least 0"):
        AttentionMatrix.from_dense(-weights)


def test_empty_sizes_and_indices_are_answered() -> None:
    nothing = AttentionMatrix(torch.zeros(2, 5, 4), torch.zeros(2, 0, 4))
    assert nothing.band(3).shape == (2, 5, 3)
    assert (nothing.max() == 0).all()
    nobody = AttentionMatrix(torch.zeros(0, 2, 5, 4), torch.zeros(0, 2, 5, 4))
    assert nobody.distance().mean.shape == (0, 2, 5)
    assert nobody.diagonal().shape == (0, 2, 5)
    some = matrix(1, 2, 20, 8)
    assert some[..., 2:5:-1, :].shape == (1, 2, 0, 20)
    assert some[..., [], [1]].shape == (1, 2, 0, 1)
    assert torch.equal(some[..., torch.tensor(3), :], some[..., 3, :])
    assert some.merge_tokens([(0, 9), (9, 20)])[..., 1:1, :].shape == (1, 2, 0, 2)
