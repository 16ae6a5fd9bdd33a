from collections import Counter
from collections.abc import Iterator

import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.survey.corpus.batches import MAX_OPEN_ROWS, MAX_WAITING_BATCHES, Batch, make_batches
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

LENGTHS = st.lists(st.one_of(st.integers(2, 40), st.just(16)), max_size=60)


def settings_of(window: int | None, batch: int) -> Settings:
    return Settings(model="model", sources=("a.txt",), max_length=window, batch_tokens=batch)


def made(lengths: list[int]) -> list[Passage]:
    """Passages whose every token is a number of its own."""
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    return [
        Passage(list(range(start, start + length)), "a.txt", start, 0)
        for start, length in zip(starts, lengths, strict=True)
    ]


def batched(passages: list[Passage], settings: Settings, *, pack: bool) -> list[Batch]:
    return [batch for batch in make_batches(passages, settings, pack=pack) if isinstance(batch, Batch)]


@given(LENGTHS, st.one_of(st.none(), st.just(40)), st.integers(1, 100), st.booleans())
def test_every_passage_lies_once_where_the_batch_says(lengths, window, most, pack):
    passages = made(lengths)
    found = batched(passages, settings_of(window, most), pack=pack)
    seen = Counter[int]()
    for batch in found:
        assert batch.ids.dtype == torch.int64
        covered = torch.zeros_like(batch.ids)
        for passage, row, start in batch.passages:
            stop = start + len(passage.ids)
            assert batch.ids[row, start:stop].tolist() == passage.ids
            covered[row, start:stop] += 1
            seen[passage.start] += 1
        assert (covered == 1).all()
    assert seen == Counter(passage.start for passage in passages)


@given(LENGTHS, st.one_of(st.none(), st.just(40)), st.integers(1, 100), st.booleans())
def test_a_batch_keeps_to_its_tokens_and_a_row_to_its_window(lengths, window, most, pack):
    for batch in batched(made(lengths), settings_of(window, most), pack=pack):
        rows, length = batch.ids.shape
        assert rows * length <= most or len(batch.passages) == 1
        assert pack or len(batch.passages) == rows
        assert length <= (window or most) or len(batch.passages) == 1


@given(LENGTHS, st.integers(1, 100))
def test_documents_number_the_passages_of_each_row(lengths, most):
    for batch in batched(made(lengths), settings_of(40, most), pack=True):
        rows = [[placed for placed in batch.passages if placed.row == row] for row in range(len(batch.ids))]
        if batch.documents is None:
            assert all(len(row) == 1 for row in rows)
            continue
        expected = [[number for number, placed in enumerate(row) for _ in placed.passage.ids] for row in rows]
        assert batch.documents.tolist() == expected
        assert all(len(row) > 1 for row in rows)


@given(LENGTHS, st.integers(1, 100), st.booleans())
def test_the_same_passages_make_the_same_batches(lengths, most, pack):
    one, other = (batched(made(lengths), settings_of(40, most), pack=pack) for _ in range(2))
    assert [batch.passages for batch in one] == [batch.passages for batch in other]
    assert all(torch.equal(first.ids, second.ids) for first, second in zip(one, other, strict=True))


@given(st.lists(st.integers(2, 40), min_size=60, max_size=120), st.integers(1, 20), st.booleans())
def test_no_more_than_the_stated_tokens_wait(lengths, most, pack):
    given_out, taken = 0, 0

    def passages() -> Iterator[Passage]:
        nonlocal given_out
        for passage in made(lengths):
            given_out += len(passage.ids)
            assert given_out - taken <= MAX_WAITING_BATCHES * most + MAX_OPEN_ROWS * 40 + 40 + max(most, 40)
            yield passage

    for batch in make_batches(passages(), settings_of(40, most), pack=pack):
        assert isinstance(batch, Batch)
        taken += batch.ids.numel()
    assert taken == sum(lengths)


def test_full_windows_make_full_batches():
    for pack in (False, True):
        found = batched(made([512] * 9), settings_of(512, 2048), pack=pack)
        assert [tuple(batch.ids.shape) for batch in found] == [(4, 512), (4, 512), (1, 512)]
        assert all(batch.documents is None for batch in found)


def test_short_passages_share_rows_only_when_packed():
    found = batched(made([100] * 40), settings_of(512, 2048), pack=True)
    assert [tuple(batch.ids.shape) for batch in found] == [(4, 500), (4, 500)]
    found = batched(made([100] * 40), settings_of(512, 2048), pack=False)
    assert [tuple(batch.ids.shape) for batch in found] == [(20, 100), (20, 100)]


def test_most_of_the_room_of_packed_rows_is_used():
    lengths = torch.randint(2, 300, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    found = batched(made(lengths), settings_of(512, 2048), pack=True)
    rows = sum(len(batch.ids) for batch in found)
    assert sum(lengths) / (rows * 512) > 0.95


def test_problems_are_passed_on_at_once():
    problem = Problem("a.txt", "byte 1", "is not UTF-8")
    first, *rest = made([3, 3])
    found = list(make_batches([first, problem, *rest], settings_of(10, 100), pack=True))
    assert found[0] == problem
    assert len(found) == 2
