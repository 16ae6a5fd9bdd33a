"""Heads found by a link have exactly the weights of the dense matrix, whichever way the link is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from attnscope.errors import Cancelled, SettingError
from attnscope.heads import HeadTable, find_heads, parse_link
from attnscope.heads import links as module
from attnscope.recording import Trace, record

TOKENS = ["the ", "word ", "is ", "co", "balt", ". ", "it ", "is ", "co", "balt"]


@pytest.fixture(scope="module")
def trace() -> Trace:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5))
    with torch.no_grad(), record(model) as found:
        model(torch.randint(64, (2, 40)))
    return found


@pytest.fixture
def words() -> Trace:
    weights = torch.rand(1, 3, len(TOKENS), len(TOKENS)).tril()
    return Trace.from_attentions([weights / weights.sum(-1, keepdim=True)], tokens=TOKENS)


def dense(trace: Trace, table: HeadTable, batch: int) -> torch.Tensor:
    """The dense weights of the heads of a table, (heads, queries, keys)."""
    heads = zip(table.layers, table.heads, strict=True)
    return torch.stack([trace[layer].to_dense()[batch, head] for layer, head in heads])


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize(
    ("query", "key"), [(39, 7), (-1, 0), (range(10, 20), range(3, 9)), (slice(30, None), 5), (range(-4, 0), range(2))]
)
def test_weights_are_those_of_the_dense_matrix(trace: Trace, query: Any, key: Any, batch: int) -> None:
    table = find_heads(trace, query=query, key=key, batch=batch)
    assert len(table) == 8
    weights = dense(trace, table, batch)

    def rows(part: Any) -> Any:
        if isinstance(part, int):
            return [part]
        return part if isinstance(part, slice) else list(part)

    expected = weights[:, rows(query)][:, :, rows(key)].sum(-1).mean(-1)
    assert torch.allclose(table["weight"].float(), expected, atol=1e-6)
    assert (table["weight"].diff() <= 0).all()


@pytest.mark.parametrize("cells", [2**24, 100])
def test_the_strongest_key_of_rows_and_query_of_columns(
    trace: Trace, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", cells)
    table = find_heads(trace, query=range(10, 30))
    rows = dense(trace, table, 0)[:, 10:30].amax(1)
    assert torch.allclose(table["top_weight"].float(), rows.amax(-1), atol=1e-6)
    assert table["top_key"].tolist() == rows.argmax(-1).tolist()
    table = find_heads(trace, key=range(3, 6))
    columns = dense(trace, table, 0)[:, :, 3:6].sum(-1)
    assert torch.allclose(table["received"].float(), columns.sum(-1), atol=1e-5)
    assert torch.allclose(table["top_weight"].float(), columns.amax(-1), atol=1e-6)
    assert table["top_query"].tolist() == columns.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("is -> cobalt", (range(7, 8), range(3, 5))),
        ("word is → the", (range(2, 3), range(1))),
        ("8 -> 3..4", (range(8, 9), range(3, 5))),
        ("is", (range(7, 8), None)),
        ("-> cobalt", (None, range(8, 10))),
        ("-1 -> cobalt", (range(-1, 0), range(8, 10))),
    ],
)
def test_links_are_read_from_words_and_positions(words: Trace, link: str, expected: tuple[Any, Any]) -> None:
    assert tuple(parse_link(words, link)) == expected
    given = dict(zip(("query", "key"), expected, strict=True))
    assert find_heads(words, link).columns.keys() == find_heads(words, **given).columns.keys()


@pytest.mark.parametrize("link", ["", "->", "is -> cobalt -> is", "emerald -> is", "the -> cobalt"])
def test_links_that_mean_nothing_are_refused(words: Trace, link: str) -> None:
    with pytest.raises(SettingError):
        find_heads(words, link)


@pytest.mark.parametrize("options", [{}, {"query": 40}, {"query": 3, "key": -41}, {"query": range(0, 9, 2)}])
def test_positions_that_no_layer_has_are_refused(trace: Trace, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        find_heads(trace, **options)


def test_it_can_be_stopped(trace: Trace) -> None:
    with pytest.raises(Cancelled):
        find_heads(trace, query=3, should_stop=lambda: True)


def test_some_layers_alone_have_the_weights_of_all(trace: Trace) -> None:
    every, last = find_heads(trace, query=39), find_heads(trace, query=39, layers=range(1, 2))
    rows = [row for row, layer in enumerate(every.layers) if layer == list(trace)[1]]
    assert last.heads == tuple(every.heads[row] for row in rows)
    assert torch.equal(last["top_weight"], every["top_weight"][rows])


def test_a_row_computes_no_other_rows(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of scores is that of one row, not of the matrix."""
    from attnscope.matrix import lazy_weights

    scored: list[int] = []
    right = lazy_weights.LazyWeights.block

    def counted(self: Any, rows: Any, columns: Any) -> Any:
        scored.append(len(rows) * len(columns))
        return right(self, rows, columns)

    monkeypatch.setattr(lazy_weights.LazyWeights, "block", counted)
    find_heads(trace, query=39)
    assert scored == [40, 40]
