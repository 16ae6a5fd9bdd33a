"""A summary is all the separate answers at once: over masks, scores and shapes, fused, streamed and held."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from attnscope.attention import Bias, Causal, Full, Padding, Sinks, Softcap
from attnscope.attention.kernels import flash_attention
from attnscope.bench.memory import peak_extra_bytes
from attnscope.errors import Cancelled, ShapeError
from attnscope.matrix import AttentionMatrix, blocks, reference, summary
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.pooling import even_edges
from attnscope.matrix.schedule import Schedule
from attnscope.matrix.summary import LOCAL_DISTANCE, Summary, summarize
from tests.bench.test_attention import kept
from tests.devices.sizes import set_block_sizes
from tests.largest import LargestTensor
from tests.matrix.test_matrix import CASES, HEADS, SHAPES, Subject, masks
from tests.matrix.test_properties import has_key, matrices, peaked

ROWS, COLUMNS = 7, 13


@pytest.fixture(autouse=True)
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 9 x 36 or so of a few heads, so that these sizes cross their edges; timed tests walk as users do."""
    if not request.node.get_closest_marker("timed"):
        set_block_sizes(monkeypatch, pass_cells=9 * 36 * HEADS, head_cells=9 * 36)
        monkeypatch.setattr(blocks, "ALIGNMENT", 1)


COUNTS = ("visible_keys", "visible_queries")
APART = ("matched_weight", "num_matches", "bin_sums", "visible_cells")  # tested below; bins by their density
NAMES = (*(name for name in Summary._fields if name not in APART), "density")


def right(dense: Tensor, seen: Tensor, rows: int = ROWS, columns: int = COLUMNS) -> SimpleNamespace:
    """The obvious lines over dense weights."""
    queries, keys = dense.shape[-2:]
    edges = even_edges(queries, rows), even_edges(keys, columns)
    previous, own = reference.band(dense, 2).unbind(-1)
    return SimpleNamespace(
        entropy=reference.entropy(dense),
        effective_keys=reference.effective_keys(dense),
        received=reference.received(dense),
        mean_distance=reference.distance(dense)[0],
        mass=dense.sum(-1),
        mean_abs_distance=reference.mean_abs_distance(dense),
        local_weight=reference.local_weight(dense, LOCAL_DISTANCE),
        self_weight=own,
        previous_weight=previous,
        first_weight=dense[..., 0],
        visible_keys=seen.sum(-1),
        visible_queries=seen.sum(-2),
        density=reference.pool(dense, seen, *edges, "density"),
    )


def assert_equal(got: Summary, wanted: SimpleNamespace | Summary, tolerance: float) -> None:
    for name in NAMES:
        mine, theirs = getattr(got, name), getattr(wanted, name)
        message = f"{name}: {(mine - theirs).abs().max()}"
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=message)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_everything_equals_dense_in_fp64(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape)
    assert_equal(subject.matrix.summary(ROWS, COLUMNS), right(subject.dense(), subject.allowed), 1e-12)


@pytest.mark.parametrize("mask", masks(4, 4))
def test_a_matrix_made_from_dense_weights_answers_the_same(mask: str) -> None:
    dense = Subject(mask, "plain", SHAPES["cross"]).dense()
    assert_equal(AttentionMatrix.from_dense(dense).summary(ROWS, COLUMNS), right(dense, dense > 0), 1e-12)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_fp32_keeps_the_four_times_rule(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape, torch.float32)
    got = subject.matrix.summary(ROWS, COLUMNS)
    truth, plain = right(subject.dense(), subject.allowed), right(subject.dense(torch.float32), subject.allowed)
    assert_near(got, truth, plain)


def assert_near(got: Summary, truth: SimpleNamespace, plain: SimpleNamespace) -> None:
    """At most four times the error of the dense formula in fp32, and four roundings."""
    eps = torch.finfo(torch.float32).eps
    for name in NAMES:
        mine, exact, dense = (getattr(one, name) for one in (got, truth, plain))
        assert mine.dtype == (torch.int64 if name in COUNTS else torch.float32)
        error, theirs = (mine - exact).abs().max(), (dense - exact).abs().max()
        bound = 4 * theirs + 4 * eps * exact.abs().max()
        assert error <= bound, f"{name}: {error:.3g} > {bound:.3g}"


def numbers(batch: int, queries: int, keys: int) -> list[tuple[Tensor, Tensor]]:
    """Few matches, many matches in a part of the matrix, numbers that all share, and none at all."""
    generator = torch.Generator().manual_seed(1)
    few = [torch.randint(30, (batch, count), generator=generator) for count in (queries, keys)]
    many = [(torch.arange(count) // 20).expand(batch, -1) for count in (queries, keys)]
    all_of_them = [torch.zeros(count, dtype=torch.int32) for count in (queries, keys)]
    none = [torch.full((count,), at) for at, count in enumerate((queries, keys))]
    return [(few[0], few[1]), (many[0], many[1]), (all_of_them[0], all_of_them[1]), (none[0], none[1])]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_keys_with_the_number_of_the_query_are_summed_and_counted(mask: str, score: str, shape) -> None:
    subject = Subject(mask, score, shape)
    dense = subject.dense()
    batch, _, queries, keys = dense.shape
    pairings = numbers(batch, queries, keys)
    got = subject.matrix.summary(ROWS, COLUMNS, pairings=pairings)
    for at, (own, theirs) in enumerate(pairings):
        pair = own.expand(batch, -1), theirs.expand(batch, -1)
        torch.testing.assert_close(
            got.matched_weight[:, :, at], reference.matched_weight(dense, *pair), rtol=0, atol=1e-12
        )
        counts = reference.matched_weight(subject.allowed.expand_as(dense).double(), *pair)
        assert torch.equal(got.num_matches[:, :, at].double(), counts)
    torch.testing.assert_close(got.matched_weight[:, :, 2], dense.sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(got.num_matches[:, :, 2], got.visible_keys)


def test_counts_are_those_of_one_head_however_many_are_walked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("causal", "plain", SHAPES["square"])
    batch, heads, queries, keys = subject.dense().shape
    pairings = numbers(batch, queries, keys)
    together = subject.matrix.summary(ROWS, COLUMNS, pairings=pairings)
    set_block_sizes(monkeypatch, pass_cells=1)  # each head apart
    apart = subject.matrix.summary(ROWS, COLUMNS, pairings=pairings)
    assert heads > 1
    assert together.num_matches.any()
    assert torch.equal(apart.num_matches, together.num_matches)


def test_numbers_go_with_weights_that_are_already_there() -> None:
    dense = Subject("causal", "plain", SHAPES["square"]).dense()
    batch, _, queries, keys = dense.shape
    pairing = numbers(batch, queries, keys)[0]
    got = AttentionMatrix.from_dense(dense).summary(pairings=[pairing])
    torch.testing.assert_close(
        got.matched_weight[:, :, 0], reference.matched_weight(dense, *pairing), rtol=0, atol=1e-12
    )
    assert torch.equal(got.num_matches[:, :, 0].double(), reference.matched_weight((dense > 0).double(), *pairing))


def test_numbers_that_are_too_few_or_not_whole_are_refused() -> None:
    matrix = AttentionMatrix(torch.randn(20, 8), torch.randn(20, 8))
    for wrong in (torch.arange(19), torch.rand(20), torch.zeros(2, 20, dtype=torch.long)):
        with pytest.raises(ShapeError, match=r"pairings.* \(20,\) or \(1, 20\)"):
            matrix.summary(5, 5, pairings=[(torch.arange(20), wrong)])


@pytest.mark.parametrize("length", [1021, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_thousand_tokens_in_blocks_as_users_have_them(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 9, length, 64, generator=generator)
    key = torch.randn(1, 3, length, 64, generator=generator)

    def dense(dtype: torch.dtype) -> SimpleNamespace:
        scores = query.to(dtype) @ key.to(dtype).repeat_interleave(3, 1).mT / 8
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        return right(scores.masked_fill(~seen, -math.inf).softmax(-1), seen.expand(1, 9, -1, -1), 64, 64)

    got = AttentionMatrix(query, key, mask=Causal()).summary()
    assert_near(got, dense(torch.float64), dense(torch.float32))


@pytest.mark.parametrize("score", [None, Softcap(1000.0)], ids=["plain", "softcap"])
def test_short_distances_of_late_rows_keep_their_digits(score: Softcap | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that looks at the previous token is one token away, also after many thousand of them."""
    monkeypatch.undo()
    query, key = (tensor[:5000] for tensor in peaked("previous"))
    precise = AttentionMatrix(query.double(), key.double(), mask=Causal(), score_mod=score)
    exact, lse = precise.summary(), precise.lse  # weights are exp(score - lse), two numbers of that size
    got = AttentionMatrix(query, key, mask=Causal(), score_mod=score).summary()
    size = exact.mean_distance[1:].median()
    assert size < 2
    assert ((got.mean_distance - exact.mean_distance).abs() / exact.mean_distance.clamp(min=1)).max() < 1e-5
    assert (got.entropy - exact.entropy).abs().max() < 8 * torch.finfo(torch.float32).eps * lse.abs().max()
    assert (got.entropy >= 0).all()


@pytest.mark.parametrize(("mask", "score"), [("causal", "plain"), ("holes", "sinks"), ("window", "softcap")])
def test_bf16_inputs_give_the_numbers_of_fp32_arithmetic(mask: str, score: str) -> None:
    stored = Subject(mask, score, SHAPES["square"], torch.bfloat16)
    upcast = AttentionMatrix(stored.query.float(), stored.key.float(), mask=stored.mask, score_mod=stored.score)
    assert_equal(stored.matrix.summary(ROWS, COLUMNS), upcast.summary(ROWS, COLUMNS), 0.0)


@pytest.mark.parametrize("sharpness", [10.0, 40.0])
def test_weights_too_small_to_count_change_nothing(sharpness: float) -> None:
    """Heads so sharp that most of their weights have no square, and many no value, in fp32."""
    query, key = sharpness * torch.randn(2, 50, 16), torch.randn(2, 50, 16)
    got = AttentionMatrix(query, key, mask=Causal(), scale=1.0).summary(10, 10)
    exact = AttentionMatrix(query.double(), key.double(), mask=Causal(), scale=1.0).summary(10, 10)
    assert (exact.received.log() < -100).any() or sharpness < 40
    for name in NAMES:
        mine, right = getattr(got, name), getattr(exact, name)
        tolerance = 1e-6 * float(AttentionMatrix(query, key, scale=1.0).lse.abs().max())
        torch.testing.assert_close(mine.to(right), right, rtol=tolerance, atol=tolerance, msg=name)


@given(matrices())
@settings(max_examples=60)
def test_it_is_what_the_separate_calls_say(matrix: AttentionMatrix) -> None:
    queries, keys = matrix.shape[-2:]
    got = matrix.summary(min(queries, 5), min(keys, 3))
    torch.testing.assert_close(got.entropy, matrix.entropy(exact=True))
    torch.testing.assert_close(got.effective_keys, matrix.effective_keys())
    torch.testing.assert_close(got.received, matrix.received())
    torch.testing.assert_close(got.received.sum(-1), has_key(matrix).sum(-1).double())
    torch.testing.assert_close(got.mean_distance, matrix.distance().mean)
    torch.testing.assert_close(got.self_weight, matrix.band(1)[..., 0])
    torch.testing.assert_close(got.previous_weight, matrix.band(2)[..., 0])
    torch.testing.assert_close(got.first_weight, matrix[..., 0])
    torch.testing.assert_close(got.density, matrix.pool(min(queries, 5), min(keys, 3)))


@pytest.mark.parametrize("score", ["plain", "softcap"])
@pytest.mark.parametrize("mask", ["causal", "window", "booleans"])
def test_empty_bins_have_nothing_and_take_nothing(mask: str, score: str) -> None:
    subject = Subject(mask, score, SHAPES["square"])
    rows, columns = [0, 0, 3, 3, 40, 40, 40, 73, 73], [0, 0, 0, 11, 64, 64, 73, 73]
    dense = subject.dense()
    sums = torch.stack(
        [dense[..., a:b, c:d].sum((-1, -2)) for a, b in pairwise(rows) for c, d in pairwise(columns)], -1
    ).unflatten(-1, (len(rows) - 1, len(columns) - 1))
    got = summarize(subject.matrix._source, rows, columns, Schedule())
    torch.testing.assert_close(got.bin_sums, sums, rtol=0, atol=1e-12)
    assert (got.bin_sums[..., [0, 2, 4, 5, 7], :] == 0).all()
    assert (got.bin_sums[..., [0, 1, 4, 6]] == 0).all()


def test_chunks_of_a_prefill_add_up() -> None:
    """Some queries at a time against all keys so far: each chunk has empty bins, and together they are the whole."""
    subject = Subject("causal", "plain", SHAPES["square"])
    edges, parts = even_edges(73, 8), []
    for start, stop in ((0, 31), (31, 32), (32, 73)):
        chunk = AttentionMatrix(subject.query[:, :, start:stop], subject.key[:, :, :stop], mask=Causal())
        rows, columns = [min(max(edge, start), stop) - start for edge in edges], [min(edge, stop) for edge in edges]
        parts.append(chunk.summary(rows, columns))
    got, whole = summary.concat_rows(parts, 73), subject.matrix.summary(8, 8)
    for name in Summary._fields:
        torch.testing.assert_close(getattr(got, name), getattr(whole, name))


def test_a_bias_may_forbid_by_itself() -> None:
    bias = torch.zeros(HEADS, 20, 20).masked_fill(torch.rand(HEADS, 20, 20) < 0.3, -math.inf)
    bias[:, 4] = -math.inf
    query, key = torch.randn(2, 1, HEADS, 20, 8, dtype=torch.float64)
    matrix = AttentionMatrix(query, key, mask=Causal(), score_mod=Bias(bias))
    dense = matrix.to_dense()
    assert (dense[..., 4, :] == 0).all()
    assert_equal(matrix.summary(5, 5), right(dense, torch.ones_like(dense).tril() > 0, 5, 5), 1e-12)


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_normalisers_of_any_size_leave_forbidden_cells_at_zero(size: float) -> None:
    query = torch.full((2, 30, 4), -size)
    matrix = AttentionMatrix(query, torch.ones(2, 30, 4), mask=Causal(), scale=1.0)
    got = matrix.summary(30, 30)
    assert all(part.isfinite().all() for part in got)
    assert (got.density.triu(1) == 0).all()


def test_leading_axes_and_strides_are_those_of_the_matrix() -> None:
    query, key = torch.randn(2, 3, 20, 8), torch.randn(2, 3, 20, 8)
    whole = AttentionMatrix(query, key, mask=Causal()).summary(5, 4)
    alone = AttentionMatrix(query, key, mask=Causal()).batch(1).head(2).summary(5, 4)
    turned = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key))
    strided = AttentionMatrix(*turned, mask=Causal()).summary(5, 4)
    assert whole.density.shape == (2, 3, 5, 4)
    assert alone.entropy.shape == (20,)
    assert_equal(alone, Summary(*(part[1, 2] for part in whole)), 1e-6)
    assert_equal(strided, whole, 1e-6)


def test_each_head_and_batch_row_is_its_own_piece_when_blocks_are_small() -> None:
    """Thirty-two heads and batch rows of their own padding: pieces that have to find their way back."""
    query, key = torch.randn(3, 32, 41, 8, dtype=torch.float64), torch.randn(3, 8, 41, 8, dtype=torch.float64)
    matrix = AttentionMatrix(query, key, mask=Causal() & Padding([41, 7, 20]), score_mod=Sinks(torch.randn(32)))
    dense = matrix.to_dense()
    seen = matrix.visible_cells(41, 41) > 0
    assert len(list(blocks._head_groups(matrix._source, 41, 41))) == 3 * 8
    assert_equal(matrix.summary(4, 4), right(dense, seen, 4, 4), 1e-12)


def test_more_bins_than_rows_are_refused() -> None:
    matrix = AttentionMatrix(torch.randn(20, 8), torch.randn(20, 8))
    for rows, columns in ((21, 5), (5, 21)):
        with pytest.raises(ValueError, match=r"1 ... 20 bins.*got 21"):
            matrix.summary(rows, columns)


def test_no_batch_rows_and_no_keys_are_answered() -> None:
    nobody = AttentionMatrix(torch.zeros(0, 2, 5, 4), torch.zeros(0, 2, 5, 4))
    assert nobody.summary(2, 2).density.shape == (0, 2, 2, 2)
    nothing = AttentionMatrix(torch.zeros(2, 5, 4), torch.zeros(2, 0, 4))._source
    got = summarize(nothing, [0, 5], [0, 0], Schedule())
    assert all((part == 0).all() for part in got)
    assert got.bin_sums.shape == (1, 2, 1, 1)


@pytest.mark.parametrize("score", [None, Softcap(3.0)], ids=["plain", "softcap"])
def test_work_stays_within_its_budget_and_tells_of_itself(score, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    reports: list[float] = []
    query, key = torch.randn(2, 1, 2, 2500, 16)
    matrix = AttentionMatrix(query, key, mask=Causal(), score_mod=score).with_options(
        max_bytes=2**20, progress=reports.append
    )
    _ = matrix.lse
    reports.clear()
    with LargestTensor() as largest:
        got = matrix.summary(100, 90)
    assert largest.bytes <= 2**20
    assert len(reports) > 10
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1.0)
    assert_equal(got, matrix.with_options(max_bytes=2**28).summary(100, 90), 1e-2)


def test_it_stops_inside_a_row_of_blocks() -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 9

    matrix = AttentionMatrix(torch.randn(9, 8), torch.randn(4000, 8), mask=Full())
    _ = matrix.lse
    with pytest.raises(Cancelled):
        matrix.with_options(should_stop=cancelled).summary(1, 1)
    assert asked == 10


LENGTH = 8192


def layer(length: int, dtype: torch.dtype = torch.float32) -> AttentionMatrix:
    """The heads of one layer of a small model."""
    query, key = torch.randn(1, 9, length, 64, dtype=dtype), torch.randn(1, 3, length, 64, dtype=dtype)
    return AttentionMatrix(query, key, mask=Causal())


def prepared(length: int, dtype: torch.dtype) -> Callable[[], object]:
    layer(100, dtype).summary()
    matrix = layer(length, dtype)
    source = matrix._source
    assert isinstance(source, LazyWeights)
    # Rough normalisers: the memory that exact ones are found with would be there for the summary to take.
    source.cached_lse = torch.arange(1.0, length + 1).log().expand(1, 9, -1).contiguous()
    return matrix.summary


@pytest.mark.timed
def test_everything_costs_less_than_three_fused_calls() -> None:
    matrix = layer(LENGTH)
    source = matrix._source
    assert isinstance(source, LazyWeights)
    source.lse(Schedule())
    query, key = source.query, source.key
    contestants = {
        "fused": lambda: flash_attention(query, key, key, is_causal=True, scale=0.125),
        "ours": matrix.summary,
    }
    assert kept(contestants, lambda best: best["ours"] <= 2.8 * best["fused"], rounds=5)


@pytest.mark.alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_takes_little_memory(dtype: torch.dtype) -> None:
    assert peak_extra_bytes(prepared, LENGTH, dtype) < 60e6


def test_a_short_text_has_a_summary_without_further_arguments() -> None:
    for queries, keys in ((1, 1), (40, 40), (5, 70), (100, 100)):
        found = AttentionMatrix(torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8)).summary()
        assert found.density.shape == (1, 2, min(64, queries), min(64, keys))
