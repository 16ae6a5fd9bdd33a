"""Batches of text: windows of a corpus, with a document mask.

In: tokens, and a sequence length. Out: a `Batch` for any sample numbers. No token attends to a token of another
document, and none has a token of another document as its target.
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
    """An endless sequence of windows of `sequence_length` tokens, shuffled in each epoch: implements `Dataset`.

    The windows of an epoch do not overlap. They start at a different offset in each epoch, so that the corpus is not
    always cut at the same places. Fewer than 2 * `sequence_length` tokens, at the ends of the corpus, are left out per
    epoch. The tokens of a sample depend only on its number, the seed and the corpus.
    """

    def __init__(self, tokens: Tokens, sequence_length: int, *, seed: int = 0):
        _check(tokens, sequence_length)
        self.tokens, self.sequence_length, self.seed = tokens, sequence_length, seed
        # Windows fit at every offset, unless the corpus is shorter than two sequences.
        self.windows = max(1, (len(tokens) - sequence_length) // sequence_length)
        self._offsets = min(sequence_length, len(tokens) - self.windows * sequence_length)

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """Return the samples with these numbers, counted from the beginning of the run.

        Args:
            samples: The numbers of samples.

        Returns:
            Token ids and targets, (samples, sequence length).
        """
        return _batch(self.tokens, [self._start_of(sample) for sample in samples], self.sequence_length)

    def _start_of(self, sample: int) -> int:
        window = window_index(sample, self.windows, self.seed)
        return epoch_offset(sample // self.windows, self._offsets, self.seed) + window * self.sequence_length


class ValidationDataset:
    """At most `count` windows, evenly spaced over the tokens and always the same: implements `Dataset`."""

    def __init__(self, tokens: Tokens, sequence_length: int, count: int):
        _check(tokens, sequence_length)
        if count < 1:
            raise SettingError(f"ValidationDataset: expected a count of at least 1, got {count}")
        self.tokens, self.sequence_length = tokens, sequence_length
        windows = (len(tokens) - 1) // sequence_length
        self._count = min(count, windows)
        self._starts = [number * windows // self._count * sequence_length for number in range(self._count)]

    def __len__(self) -> int:
        """The number of different samples."""
        return self._count

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """Return the samples with these numbers; numbers above the last wrap around to the first.

        Args:
            samples: The numbers of samples.

        Returns:
            Token ids and targets, (samples, sequence length).
        """
        return _batch(self.tokens, [self._starts[sample % self._count] for sample in samples], self.sequence_length)


def _check(tokens: Tokens, sequence_length: int) -> None:
    if sequence_length < 1:
        raise SettingError(f"expected a sequence_length of at least 1, got {sequence_length}")
    if len(tokens) < sequence_length + 1:
        raise SettingError(
            f"expected at least {sequence_length + 1:,} tokens for a sequence of {sequence_length:,} and its targets, "
            f"got {len(tokens):,}; use more text, or a smaller sequence_length"
        )


def _batch(tokens: Tokens, starts: Sequence[int], length: int) -> Batch:
    """Return the sequences at these starts; the target of each token is the next token."""
    if not starts:
        raise SettingError("get_batch: expected at least one sample number, got an empty list")
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
    """Return the position of each token within its document, counted from the first one in its sequence."""
    places = torch.arange(documents.shape[1]).expand_as(documents)
    begins = torch.zeros_like(documents)
    begins[:, 1:] = torch.where(documents[:, 1:] != documents[:, :-1], places[:, 1:], 0)
    return places - begins.cummax(dim=1).values
