"""Passages as batches: rows of equal length, so that nothing is ever padded.

In: passages, in any lengths. Out: each of them once, in batches of at most `settings.batch` tokens unless one passage
alone has more. Short passages share a row where the model can keep them apart. The same passages make the same batches.
Does not know: files, models. Memory: `HELD` batches of tokens, `OPEN` rows, and the longest passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.survey.corpus.passages import LEAST, Passage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

HELD = 16  # batches of tokens that wait for rows of their own length
OPEN = 8  # rows that wait for passages, where several share one


class Placed(NamedTuple):
    """A passage, and where it lies in a batch."""

    passage: Passage
    row: int
    start: int


class Batch(NamedTuple):
    """Rows of equal length."""

    ids: Tensor
    """(rows, tokens) int64."""
    documents: Tensor | None
    """(rows, tokens) int64: the number of each token's passage in its row; None where every row is one passage."""
    passages: list[Placed]
    """In the order of rows, and within a row from left to right."""


class _Row:
    """Passages side by side."""

    def __init__(self) -> None:
        self.passages = list[Passage]()
        self.length = 0

    def add(self, passage: Passage) -> None:
        self.passages.append(passage)
        self.length += len(passage.ids)


def batches_of(passages: Iterable[Passage | Problem], settings: Settings, *, packed: bool) -> Iterator[Batch | Problem]:
    """Batches of passages; problems are passed on.

    With `packed`, short passages share a row that is no longer than a window and than a batch, for models that take a
    `Documents` mask and positions; without, a row is one passage.

    >>> settings = Settings(model="", sources=("poems.txt",), window=5)
    >>> passages = [Passage([7] * length, "poems.txt", 0, 0) for length in (2, 5, 3)]
    >>> [batch.documents for batch in batches_of(passages, settings, packed=True)]
    [None, tensor([[0, 0, 1, 1, 1]])]
    """
    waiting, held = dict[tuple[int, bool], list[_Row]](), 0
    for row in _rows(passages, min(settings.window or settings.batch, settings.batch), packed):
        if isinstance(row, Problem):
            yield row
            continue
        kind = row.length, len(row.passages) > 1  # rows of one passage need no mask, and are not given one
        rows = waiting.setdefault(kind, [])
        rows.append(row)
        held += row.length
        full = (len(rows) + 1) * row.length > settings.batch
        while full or held > HELD * settings.batch:
            leaving = kind if full else next(iter(waiting))  # the one that waits the longest
            rows, full = waiting.pop(leaving), False
            held -= len(rows) * leaving[0]
            yield _batch(rows)
    yield from map(_batch, waiting.values())


def _rows(passages: Iterable[Passage | Problem], most: int, packed: bool) -> Iterator[_Row | Problem]:
    """Rows with one passage each or, packed, with as many as fit: into the fullest of some open rows with room."""
    open_rows = list[_Row]()
    for passage in passages:
        if isinstance(passage, Problem):
            yield passage
            continue
        fitting = [row for row in open_rows if row.length + len(passage.ids) <= most]
        row = max(fitting, key=lambda row: row.length) if fitting else _Row()
        row.add(passage)
        if not packed or row.length + LEAST > most:
            if fitting:
                open_rows.remove(row)
            yield row
        elif not fitting:
            open_rows.append(row)
            if len(open_rows) > OPEN:
                fullest = max(open_rows, key=lambda row: row.length)
                open_rows.remove(fullest)
                yield fullest
    yield from open_rows


def _batch(rows: list[_Row]) -> Batch:
    placed, ids, documents = list[Placed](), list[list[int]](), list[list[int]]()
    for at, row in enumerate(rows):
        ids.append([token for passage in row.passages for token in passage.ids])
        documents.append([number for number, passage in enumerate(row.passages) for _ in passage.ids])
        start = 0
        for passage in row.passages:
            placed.append(Placed(passage, at, start))
            start += len(passage.ids)
    several = len(placed) > len(rows)
    return Batch(torch.tensor(ids), torch.tensor(documents) if several else None, placed)
