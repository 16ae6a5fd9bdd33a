"""Packs passages into batches with rows of equal length, without padding.

In: passages of any length. Out: each of them once, in batches of at most `settings.batch_tokens` tokens; a longer
passage is a batch of its own. Short passages share a row if the model supports document masks. The result is
deterministic.
Does not know: files, models. Memory: `MAX_WAITING_BATCHES` batches of tokens, `MAX_OPEN_ROWS` rows, the longest
passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.survey.corpus.passages import MIN_TOKENS, Passage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

MAX_WAITING_BATCHES = 16  # tokens, in batches, that wait for more rows of the same length
MAX_OPEN_ROWS = 8  # rows that wait for more passages


class PlacedPassage(NamedTuple):
    """A passage, and its place in a batch."""

    passage: Passage
    row: int
    start: int


class Batch(NamedTuple):
    """Rows of equal length."""

    ids: Tensor
    """Token ids, int64 (rows, tokens)."""
    documents: Tensor | None
    """The index of each token's passage within its row, int64 (rows, tokens); None if every row is one passage."""
    passages: list[PlacedPassage]
    """All passages, by row, and from left to right within a row."""


class _Row:
    """The passages of one row."""

    def __init__(self) -> None:
        self.passages = list[Passage]()
        self.length = 0

    def add(self, passage: Passage) -> None:
        self.passages.append(passage)
        self.length += len(passage.ids)


def make_batches(passages: Iterable[Passage | Problem], settings: Settings, *, pack: bool) -> Iterator[Batch | Problem]:
    """Yield batches of passages; problems are passed on.

    Args:
        passages: Passages and problems.
        settings: Their `batch_tokens` and `max_length` limit a batch and a row.
        pack: Whether short passages share a row, for models that take a `Documents` mask and positions.

    Yields:
        Batches, and the problems given.

    >>> settings = Settings(model="", sources=("poems.txt",), max_length=5)
    >>> passages = [Passage([7] * length, "poems.txt", 0, 0) for length in (2, 5, 3)]
    >>> [batch.documents for batch in make_batches(passages, settings, pack=True)]
    [None, tensor([[0, 0, 1, 1, 1]])]
    """
    waiting, held = dict[tuple[int, bool], list[_Row]](), 0
    for row in _rows(passages, min(settings.max_length or settings.batch_tokens, settings.batch_tokens), pack):
        if isinstance(row, Problem):
            yield row
            continue
        shape = row.length, len(row.passages) > 1  # rows of one passage need no mask
        rows = waiting.setdefault(shape, [])
        rows.append(row)
        held += row.length
        full = (len(rows) + 1) * row.length > settings.batch_tokens
        while full or held > MAX_WAITING_BATCHES * settings.batch_tokens:
            leaving = shape if full else next(iter(waiting))  # the one that has waited longest
            rows, full = waiting.pop(leaving), False
            held -= len(rows) * leaving[0]
            yield _batch(rows)
    yield from map(_batch, waiting.values())


def _rows(passages: Iterable[Passage | Problem], max_tokens: int, pack: bool) -> Iterator[_Row | Problem]:
    """Rows with one passage each or, if packed, each passage in the fullest open row that has room for it."""
    open_rows = list[_Row]()
    for passage in passages:
        if isinstance(passage, Problem):
            yield passage
            continue
        fitting = [row for row in open_rows if row.length + len(passage.ids) <= max_tokens]
        row = max(fitting, key=lambda row: row.length) if fitting else _Row()
        row.add(passage)
        if not pack or row.length + MIN_TOKENS > max_tokens:
            if fitting:
                open_rows.remove(row)
            yield row
        elif not fitting:
            open_rows.append(row)
            if len(open_rows) > MAX_OPEN_ROWS:
                fullest = max(open_rows, key=lambda row: row.length)
                open_rows.remove(fullest)
                yield fullest
    yield from open_rows


def _batch(rows: list[_Row]) -> Batch:
    placed, ids, documents = list[PlacedPassage](), list[list[int]](), list[list[int]]()
    for at, row in enumerate(rows):
        ids.append([token for passage in row.passages for token in passage.ids])
        documents.append([number for number, passage in enumerate(row.passages) for _ in passage.ids])
        start = 0
        for passage in row.passages:
            placed.append(PlacedPassage(passage, at, start))
            start += len(passage.ids)
    several = len(placed) > len(rows)
    return Batch(torch.tensor(ids), torch.tensor(documents) if several else None, placed)
