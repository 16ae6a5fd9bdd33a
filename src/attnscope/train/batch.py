"""What a step of training is given: tokens, what should come out at each of them, and which belong together.

In: nothing. Out: `Batch`, and `Dataset`, the one thing that the loop asks of a source of data. A batch is a function of
the numbers of its samples, counted from the beginning of a run: whoever knows how many samples were seen goes on with
exactly the next ones, on any number of ranks.
Does not know: files, models, ranks. Memory: one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

IGNORE_INDEX = -1
"""A target that does not count."""


class Batch(NamedTuple):
    """One row for each sample; all tensors are int64 (rows, positions)."""

    input_ids: Tensor
    targets: Tensor
    """The token to predict at each position, or IGNORED."""
    document_ids: Tensor | None = None
    """The number of each token's document, which sees no other; None where every row is a single document."""
    position_ids: Tensor | None = None
    """How far into its document a token stands; None where each row counts from 0."""


class Dataset(Protocol):
    """A source of samples without end."""

    sequence_length: int
    """Positions of a row."""

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers."""
        ...
