"""Batches of text: windows of a corpus, in which each document is alone with itself.

In: tokens, and the length of a row. Out: a `Batch` for any numbers of samples. No token sees, and none is asked to
predict, a token of another document.
Does not know: models, ranks. Memory: one batch, and the order of an epoch (see `sampler`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.train.batch import IGNORE_INDEX, Batch
from attnscope.train.data.sampler import epoch_offset, window_index
from attnscope.train.data.tokens import Tokens


class TextDataset:
    """Windows of `sequence_length` tokens without end, in another order in each epoch: implements `Dataset`.

    The windows of an epoch do not overlap. They begin at another offset in each epoch, so that what was cut apart in
    one is whole in the next; fewer than 2 * `sequence_length` tokens, at the ends of the corpus, are left out. Which
    tokens a sample has depends on its number, the seed and the corpus, and on nothing else.
    """

    def __init__(self, tokens: Tokens, sequence_length: int, *, seed: int = 0):
        _check(tokens, sequence_length)
        self.tokens, self.sequence_length, self.seed = tokens, sequence_length, seed
        # Room for every offset, unless the corpus is shorter than two rows.
        self.windows = max(1, (len(tokens) - sequence_length) // sequence_length)
        self._offsets = min(sequence_length, len(tokens) - self.windows * sequence_length)

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers, counted from the beginning of the run."""
        return _batch(self.tokens, [self._start_of(sample) for sample in samples], self.sequence_length)

    def _start_of(self, sample: int) -> int:
        window = window_index(sample, self.windows, self.seed)
        return epoch_offset(sample // self.windows, self._offsets, self.seed) + window * self.sequence_length


class ValidationDataset:
    """At most `count` windows that are spread evenly over the tokens, the same ones each time: implements `Dataset`."""

    def __init__(self, tokens: Tokens, sequence_length: int, count: int):
        _check(tokens, sequence_length)
        if count < 1:
            raise SettingError(f"ValidationDataset: {count} windows were asked for; it takes one at least")
        self.tokens, self.sequence_length = tokens, sequence_length
        windows = (len(tokens) - 1) // sequence_length
        self._count = min(count, windows)
        self._starts = [number * windows // self._count * sequence_length for number in range(self._count)]

    def __len__(self) -> int:
        """How many different samples there are."""
        return self._count

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers; after the last one the first one comes again."""
        return _batch(self.tokens, [self._starts[sample % self._count] for sample in samples], self.sequence_length)


def _check(tokens: Tokens, sequence_length: int) -> None:
    if sequence_length < 1:
        raise SettingError(f"rows of {sequence_length} tokens were asked for; it takes one at least")
    if len(tokens) < sequence_length + 1:
        raise SettingError(
            f"a sequence of {sequence_length:,} tokens and its targets take {sequence_length + 1:,} tokens, got "
            f"{len(tokens):,}; use more text, or a smaller sequence_length"
        )


def _batch(tokens: Tokens, starts: Sequence[int], length: int) -> Batch:
    """A row from each start on, whose targets are the tokens one further."""
    if not starts:
        raise SettingError("a batch of no samples was asked for; it takes one at least")
    windows = torch.stack([tokens.window(start, length + 1) for start in starts])
    documents = torch.stack([tokens.document_ids(start, length + 1) for start in starts])
    borders = documents[:, 1:] != documents[:, :-1]
    targets = windows[:, 1:].masked_fill(borders, IGNORE_INDEX)
    inputs = windows[:, :-1].contiguous()
    if not borders[:, :-1].any():
        return Batch(inputs, targets)
    documents = documents[:, :-1].contiguous()
    return Batch(inputs, targets, documents, _positions(documents))


def _positions(documents: Tensor) -> Tensor:
    """How far each token stands behind the first one of its document in its row."""
    places = torch.arange(documents.shape[1]).expand_as(documents)
    begins = torch.zeros_like(documents)
    begins[:, 1:] = torch.where(documents[:, 1:] != documents[:, :-1], places[:, 1:], 0)
    return places - begins.cummax(dim=1).values
