"""Reports on queries, keys and heads say what the dense matrix says."""

from __future__ import annotations

import numpy
import pytest
import torch

from attnscope.attention import Causal, Full, Window
from attnscope.attention.algebra import Sizes
from attnscope.errors import Cancelled, UnsupportedError
from attnscope.explorer.analysis import inspection
from attnscope.heads import score_heads
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace, read
from tests.explorer.serving import TEXT, small_model, small_trace

MASKS = {"causal": Causal(), "full": Full(), "window": Window(5)}


@pytest.fixture(params=[*MASKS, "held", "fewer queries"])
def case(request: pytest.FixtureRequest) -> tuple[AttentionMatrix, torch.Tensor, torch.Tensor]:
    """A matrix, its dense weights, and which cells can be seen."""
    query, key = 3 * torch.randn(37, 8), torch.randn(37, 8)
    if request.param == "fewer queries":
        query, mask = query[:30], Causal()
    else:
        mask = MASKS.get(request.param, Causal())
    matrix = AttentionMatrix(query, key, mask=mask)
    seen = mask.to_dense(Sizes(1, 1, *matrix.shape))[0, 0]
    dense = (query.double() @ key.double().mT / 8**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    return (AttentionMatrix.from_dense(dense.float()) if request.param == "held" else matrix), dense, seen


def close(found: object, wanted: object) -> None:
    """To what float32 keeps of scores that are some tens large."""
    numpy.testing.assert_allclose(numpy.asarray(found), numpy.asarray(wanted), rtol=2e-5, atol=2e-6)


def test_rows_columns_and_cells_are_the_weights_and_nan_where_nothing_can_be_seen(case) -> None:
    matrix, dense, seen = case
    wanted = dense.masked_fill(~seen, torch.nan)
    for query in (0, 1, 17, len(dense) - 1):
        line = inspection.row(matrix, query)
        assert line.level == 0
        assert line.values.dtype == numpy.float32
        close(line.values, wanted[query][None])
    for key in (0, 17, 36):
        close(inspection.column(matrix, key).values, wanted[:, key][None])
    close(inspection.cells(matrix, range(3, 9), range(2, 20)), wanted[3:9, 2:20])
    close(inspection.cells(matrix, range(1), range(36, 37)), wanted[:1, 36:])


def test_reports_on_queries_are_those_of_dense_rows(case) -> None:
    matrix, dense, seen = case
    offset = dense.shape[1] - dense.shape[0]
    for query in (0, 5, len(dense) - 1):
        found, row = inspection.query_report(matrix, query), dense[query]
        assert (found["position"], found["visible_keys"]) == (query, int(seen[query].sum()))
        positive = row[row > 0]
        close(found["entropy"], -(positive * positive.log()).sum())
        close(found["effective_keys"], 1 / (row * row).sum())
        close(found["mean_distance"], sum(weight * (query + offset - key) for key, weight in enumerate(row.tolist())))
        close(found["first_token"], row[0])
        order = sorted(((weight, key) for key, weight in enumerate(row.tolist()) if weight > 0), reverse=True)[:20]
        assert [key for key, _ in found["strongest"]] == [key for _, key in order]
        close([weight for _, weight in found["strongest"]], [weight for weight, _ in order])


def test_reports_on_keys_are_those_of_dense_columns(case) -> None:
    matrix, dense, seen = case
    for key in (0, 5, 36):
        found, column = inspection.key_report(matrix, key), dense[:, key]
        assert (found["position"], found["visible_queries"]) == (key, int(seen[:, key].sum()))
        close(found["received"], column.sum())
        order = sorted(((weight, query) for query, weight in enumerate(column.tolist()) if weight > 0), reverse=True)
        assert [query for query, _ in found["strongest"]] == [query for _, query in order[:20]]


def test_the_profile_is_the_mean_share_at_each_distance(case) -> None:
    matrix, dense, _ = case
    found, offset = inspection.distance_profile(matrix), dense.shape[1] - dense.shape[0]
    assert found["edges"] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert (found["sampled_rows"], found["rows"]) == (len(dense), len(dense))
    mass, ahead = numpy.zeros(7), numpy.zeros(7)
    for query in range(dense.shape[0]):
        for key in range(dense.shape[1]):
            distance = query + offset - key
            place = next(at for at in range(7) if found["edges"][at] <= abs(distance) < found["edges"][at + 1])
            (mass if distance >= 0 else ahead)[place] += float(dense[query, key]) / len(dense)
    close(found["mass"], mass)
    close(found["ahead"], ahead)


def test_a_long_row_and_column_are_pooled_over_what_can_be_seen() -> None:
    matrix = AttentionMatrix(torch.randn(5000, 8), torch.randn(5000, 8), mask=Causal())
    dense, seen = matrix[4997].double(), torch.arange(5000) <= 4997
    line = inspection.row(matrix, 4997)
    assert (line.level, line.values.shape) == (1, (2, 2500))
    pairs, count = dense.view(-1, 2), seen.view(-1, 2).sum(-1)
    close(line.values[0], torch.where(count > 0, pairs.sum(-1) / count, torch.nan))
    close(line.values[1], torch.where(count > 0, pairs.amax(-1), torch.nan))
    assert numpy.isnan(line.values[:, -1]).all()
    column, line = matrix[:, 4999].double().view(-1, 2), inspection.column(matrix, 4999)
    assert numpy.isnan(line.values[:, :-1]).all()
    close(line.values[:, -1], [column[-1].sum(), column[-1].max()])


def test_a_profile_of_many_rows_says_how_many_it_looked_at() -> None:
    matrix = AttentionMatrix(torch.zeros(1000, 4), torch.zeros(1000, 4), mask=Causal())
    found = inspection.distance_profile(matrix)
    assert (found["sampled_rows"], found["rows"]) == (256, 1000)
    close(sum(found["mass"]), 1.0)
    assert sum(found["ahead"]) == 0


def test_queries_that_see_nothing_are_no_part_of_a_profile() -> None:
    weights = torch.zeros(4, 4)
    weights[2:, 0] = 1.0
    found = inspection.distance_profile(AttentionMatrix.from_dense(weights))
    assert found["mass"] == [0.0, 0.0, 1.0]
    assert inspection.query_report(AttentionMatrix.from_dense(weights), 0)["effective_keys"] == 0.0


def test_scores_of_one_head_are_its_row_in_the_table_of_all() -> None:
    trace = small_trace()
    table = score_heads(trace, progress=False)
    for row, (name, head) in enumerate(zip(table.layers, table.heads, strict=True)):
        labels, scores = inspection.head_scores(trace, list(trace).index(name), head)
        assert {"induction", "duplicate", "previous"} <= set(scores)
        assert tuple(label["name"] for label in labels) == (table.labels or ())[row]
        assert all(label["meaning"] for label in labels)
        close([scores[score] for score in scores], [table.columns[score][row] for score in scores])


def test_scores_of_one_head_of_held_weights_are_its_row_in_the_table_of_all() -> None:
    trace = Trace.from_attentions([torch.randn(2, 3, 9, 9).tril().exp().tril().softmax(-1)])
    first = Trace.from_attentions([trace["0"][:][:1]])
    table = score_heads(first, progress=False)
    _, scores = inspection.head_scores(trace, 0, 2)
    close([scores[name] for name in scores], [table.columns[name][2] for name in scores])


def test_scores_of_chosen_heads_are_of_the_right_ones() -> None:
    model, tokenizer = small_model()
    some = read(model, TEXT, tokenizer, heads=[1, 3], progress=False)
    _, scores = inspection.head_scores(some, 1, 1)
    _, wanted = inspection.head_scores(small_trace(), 1, 3)
    close([scores[name] for name in wanted], list(wanted.values()))


def test_scoring_stops_when_it_is_told_to() -> None:
    with pytest.raises(Cancelled):
        inspection.head_scores(small_trace(), 0, 0, lambda: True)


def test_statistics_alone_cannot_be_looked_into() -> None:
    model, tokenizer = small_model()
    with pytest.raises(UnsupportedError, match="statistics only"):
        inspection.head_scores(read(model, TEXT, tokenizer, keep="statistics", progress=False), 0, 0)
