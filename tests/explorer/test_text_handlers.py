"""Texts, words, links and files of weights are those of the trace."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import pairwise

import numpy
import pytest
import torch

from attnscope.attention import Causal
from attnscope.explorer.analysis.words import word_starts
from attnscope.explorer.library.library import Library
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from tests.explorer.serving import TEXT, serving, small_trace
from tests.explorer.synthetic import random_head
from tests.explorer.test_server import HOSTILE, Shown, close, dense_of

IMMUTABLE = "private, max-age=31536000, immutable"


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    trace = small_trace()
    with serving(trace) as handle:
        yield Shown(handle, trace)


def as_dict(found: dict) -> dict[tuple[int, int], float]:
    return {(start, stop): weight for start, stop, weight in found["links"]}


def test_many_tokens_are_told_at_once(shown: Shown) -> None:
    answer = shown.get("0/text?side=key&from=0&to=99")
    assert answer.json == list(TEXT)
    assert answer.headers["cache-control"] == IMMUTABLE
    assert shown.get("0/text?side=query&from=3&to=5").json == list(TEXT)[3:5]
    for wrong in ("0/text", "0/text?from=5&to=2", "0/text?side=x&from=0&to=1"):
        assert shown.get(wrong).status == 400
    count = 2**18 + 1
    trace = Trace.from_attentions([torch.ones(1, 1, 1, count) / count], tokens=["a" * 201] + ["b"] * (count - 1))
    with serving(trace) as handle:
        long = Shown(handle, trace)
        assert long.get(f"0/text?side=key&from=0&to={count}").status == 400
        assert long.get(f"0/text?side=key&from=0&to={count - 1}").json == ["a" * 200] + ["b"] * (count - 2)


def test_words_are_told_by_their_first_tokens(shown: Shown) -> None:
    answer = shown.get("1/words?side=query")
    assert answer.json == word_starts(list(TEXT))
    assert answer.headers["cache-control"] == IMMUTABLE
    assert shown.get("2/words").status == 404


def test_links_of_a_token_are_its_row_and_its_column(shown: Shown) -> None:
    dense = dense_of(shown.trace, 1, 2).nan_to_num()
    answer = shown.get("1/2/links/query/50")
    assert answer.headers["cache-control"] == IMMUTABLE
    found = answer.json
    assert (found["span"], found["count"], len(found["links"])) == ([50, 51], 51, 51)
    close(found["total"], 1.0)
    assert [start for start, *_ in found["links"]] == dense[50].argsort(descending=True, stable=True)[:51].tolist()
    close([weight for *_, weight in found["links"]], dense[50].sort(descending=True).values[:51])
    found = shown.get("1/2/links/key/50?unit=token").json
    assert (found["span"], found["count"]) == ([50, 51], 22)
    close(found["total"], dense[:, 50].sum())
    assert all(stop == start + 1 for start, stop, _ in found["links"])
    close([as_dict(found)[at, at + 1] for at in range(50, 72)], dense[50:, 50])


def test_links_of_a_word_are_the_mean_of_what_its_tokens_give_and_the_sum_of_what_they_receive(shown: Shown) -> None:
    words = list(pairwise([*word_starts(list(TEXT)), 72]))
    dense = dense_of(shown.trace, 0, 1).nan_to_num()
    merged = {
        (one, two): float(dense[slice(*one), slice(*two)].sum()) / (one[1] - one[0]) for one in words for two in words
    }
    for own in (words[0], words[5], words[-1]):
        for place in range(*own):
            found = shown.get(f"0/1/links/query/{place}?unit=word").json
            assert found["span"] == list(own)
            wanted = {two: merged[own, two] for two in words if two[0] < own[1]}
            assert found["count"] == len(wanted)
            close(found["total"], 1.0)
            close([as_dict(found)[two] for two in wanted], list(wanted.values()))
        found = shown.get(f"0/1/links/key/{own[0]}?unit=word").json
        wanted = {one: merged[one, own] for one in words if one[1] > own[0]}
        assert (found["span"], found["count"], len(found["links"])) == (list(own), len(wanted), len(wanted))
        close(found["total"], sum(wanted.values()))
        close([as_dict(found)[one] for one in wanted], list(wanted.values()))
        weights = [weight for *_, weight in found["links"]]
        assert weights == sorted(weights, reverse=True)


def test_as_many_links_are_told_as_are_asked_for_and_never_one_without_weight(shown: Shown) -> None:
    everything = shown.get("0/0/links/query/71").json
    some = shown.get("0/0/links/query/71?most=3").json
    assert some == {**everything, "links": everything["links"][:3]}
    for most in ("0", "4001", "x"):
        assert shown.get(f"0/0/links/query/71?most={most}").status == 400
    weights = torch.tensor([[1.0, 0, 0], [0, 0.25, 0.75], [0, 0, 0]])[None, None]
    trace = Trace.from_attentions([weights], tokens=["a", " b", " c"])
    with serving(trace) as handle:
        held = Shown(handle, trace)
        assert held.get("0/0/links/query/1").json == {
            "span": [1, 2], "total": 1.0, "count": 2, "links": [[2, 3, 0.75], [1, 2, 0.25]],
        }  # fmt: skip
        assert held.get("0/0/links/query/2?unit=word").json == {"span": [2, 3], "total": 0.0, "count": 0, "links": []}


@pytest.mark.parametrize(
    "path", ["links/query/72", "links/key/72", "links/both/0", "links/query/-1", "links/query", "links/query/0/0"]
)
def test_links_that_are_not_there_are_not_found(shown: Shown, path: str) -> None:
    assert shown.get(f"0/0/{path}").status == 404


def test_links_between_two_texts_are_those_of_each(shown: Shown) -> None:
    head = random_head(9, 14, causal=False)
    trace = head.trace()
    with serving(trace) as handle:
        cross = Shown(handle, trace)
        dense = head.rows(range(9))
        found = cross.get("0/0/links/key/13").json
        assert (found["span"], found["count"]) == ([13, 14], 9)
        close([as_dict(found)[at, at + 1] for at in range(9)], dense[:, 13])
        assert cross.get("0/0/links/query/9").status == 404
        answer = cross.get("0/0/links/query/0?unit=word")
        assert answer.status == 404
        assert "not known" in answer.json["error"]


def test_weights_that_are_no_numbers_have_no_links_and_are_in_no_file() -> None:
    query = torch.randn(1, 1, 6, 4)
    query[..., 3, :] = torch.nan
    trace = Trace("broken")
    call = Call(query=query, key=torch.randn(1, 1, 6, 4), value=None, mask=Causal(), scale=None)
    trace.layers = {"a": Layer("a", call, cross=False)}
    with serving(trace) as handle:
        broken = Shown(handle, trace)
        for path in ("links/query/3", "links/key/3", "block?i0=0&i1=6&j0=0&j1=6"):
            answer = broken.get(f"0/0/{path}")
            assert answer.status == 400
            assert "not numbers" in answer.json["error"]
        assert broken.get("0/0/links/query/2").status == 200


def test_a_block_is_a_file_of_exact_weights_for_programs_and_for_tables(shown: Shown) -> None:
    dense = dense_of(shown.trace, 1, 3)[10:30, 5:25]
    answer = shown.get("1/3/block?i0=10&i1=30&j0=5&j1=25&as=npy")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-disposition"] == 'attachment; filename="weights.npy"'
    values = numpy.load(io.BytesIO(answer.body), allow_pickle=False)
    assert (values.dtype, values.shape) == (numpy.dtype("<f4"), (20, 20))
    close(values, dense)
    answer = shown.get("1/3/block?i0=10&i1=30&j0=5&j1=25&as=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    head, *rows = csv.reader(io.StringIO(answer.body.decode(), newline=""), strict=True)
    assert head == ["", *(f"{at} {TEXT[at]}" for at in range(5, 25))]
    assert [name for name, *_ in rows] == [f"{at} {TEXT[at]}" for at in range(10, 30)]
    cells = [[numpy.nan if cell == "" else float(cell) for cell in row[1:]] for row in rows]
    assert numpy.array_equal(numpy.array(cells, dtype=numpy.float32), values, equal_nan=True)


def test_a_block_has_a_cell_at_least_and_four_million_at_most(shown: Shown) -> None:
    for wrong in ("i0=3&i1=3&j0=0&j1=1", "i0=0&i1=73&j0=0&j1=1", "i0=0&i1=2", "i0=0&i1=2&j0=0&j1=2&as=xls"):
        assert shown.get(f"0/0/block?{wrong}").status == 400
    head = random_head(2049, 2048, causal=False, dim=2)
    with serving(head.trace()) as handle:
        large = Shown(handle, head.trace())
        assert large.get("0/0/block?i0=0&i1=2049&j0=0&j1=2048").status == 400
        assert len(large.get("0/0/block?i0=0&i1=2048&j0=0&j1=2048").body) == 4 * 2**22 + 128


def test_hostile_tokens_stay_in_their_cells() -> None:
    tokens = [*HOSTILE, "=1+1", "@SUM(A1)", "\r\n=2", '",=3,"']
    count = len(tokens)
    library = Library()
    library.add(Trace.from_attentions([torch.rand(1, 1, count, count).softmax(-1)], tokens=tokens), name="hostile")
    with serving(library) as handle:
        shown = Shown(handle, Trace())
        body = shown.get(f"0/0/block?i0=0&i1={count}&j0=0&j1={count}&as=csv").body
        head, *rows = csv.reader(io.StringIO(body.decode(), newline=""), strict=True)
        wanted = [f"{at} {text[:200]}".encode("utf-8", "replace").decode() for at, text in enumerate(tokens)]
        assert head[1:] == wanted
        assert [row[0] for row in rows] == wanted
        assert all(row[0][0].isdigit() and len(row) == count + 1 for row in rows)
        for path in (f"0/text?side=key&from=0&to={count}", "0/words?side=key", "0/0/links/query/3?unit=word"):
            answer = shown.get(path)
            assert (answer.status, answer.body.isascii()) == (200, True)
        assert shown.get(f"0/text?side=key&from=0&to={count}").json == [text[:200] for text in tokens]


def test_a_file_of_positions_whose_texts_are_not_known_names_positions() -> None:
    trace = Trace.from_attentions([torch.eye(3)[None, None]])
    with serving(trace) as handle:
        body = Shown(handle, trace).get("0/0/block?i0=1&i1=3&j0=0&j1=3&as=csv").body
        assert body == b",0,1,2\r\n1,,1,\r\n2,,,1\r\n"
