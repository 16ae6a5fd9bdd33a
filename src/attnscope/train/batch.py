"""The input of a training step.

In: nothing. Out: `Batch`, and `Dataset`, the protocol of training data. A batch is a function of the numbers of its
samples, counted from the start of a run, so a run can resume with exactly the next samples on any number of ranks.
Does not know: files, models, ranks. Memory: one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

IGNORE_INDEX = -1
"""A target that does not contribute to the loss."""


class Batch(NamedTuple):
    """Training sequences; all tensors are int64 (sequences, positions)."""

    input_ids: Tensor
    targets: Tensor
    """The token to predict at each position, or `IGNORE_INDEX`."""
    document_ids: Tensor | None = None
    """The document of each token; documents do not attend to each other. None if each sequence is one document."""
    position_ids: Tensor | None = None
    """The position of each token in its document; None if each sequence counts from 0."""


class Dataset(Protocol):
    """An endless source of numbered samples."""

    sequence_length: int
    """Tokens per sequence."""

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers, as a batch.

        Args:
            samples: The numbers of samples.

        Returns:
            Token ids and targets, (samples, sequence length).
        """
        ...
