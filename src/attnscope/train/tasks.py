"""Tasks that make their own data: reversing a row, and going on with a row that repeats.

In: numbers of samples. Out: batches; the same sample is always the same row. And `ReversalModel`, the smallest model
that can (or, without positions, cannot) reverse.
Does not know: the loop. Memory: one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnscope.attention.positions import LearnedPositions, position_ids
from attnscope.errors import SettingError
from attnscope.models.layers import MultiHeadAttention
from attnscope.models.linear import Linear
from attnscope.train.batch import IGNORE_INDEX, Batch
from attnscope.train.data.sampler import seeded_generator


class Reversal:
    """Sequences of random digits; the target at each position is the digit at the mirrored position."""

    vocab_size = 10

    def __init__(self, *, sequence_length: int = 12, seed: int = 0):
        self.sequence_length, self.seed = sequence_length, seed

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers, as a batch."""
        drawn = (
            torch.randint(
                self.vocab_size, (self.sequence_length,), generator=seeded_generator("reversal", sample, self.seed)
            )
            for sample in samples
        )
        tokens = torch.stack(list(drawn))
        return Batch(tokens, tokens.flip(1))


def best_without_positions(rows: Tensor) -> tuple[float, float]:
    """The best loss and accuracy at reversing sequences of even length for a model that ignores token order.

    The token at the mirrored place is then any of the other tokens of the row, each as likely as the next.

    >>> best_without_positions(torch.tensor([[4, 4, 4, 4]])), best_without_positions(torch.tensor([[1, 2, 3, 4]]))[1]
    ((0.0, 1.0), 0.3333333333333333)
    """
    length = rows.shape[1]
    if length % 2:
        raise SettingError(f"best_without_positions: expected an even sequence length, got {length}")
    same = (rows[:, :, None] == rows[:, None, :]).double()
    # For each place i and each place j of its row: how often the token of j stands at other places than i.
    fractions = (same.sum(2)[:, None, :] - same) / (length - 1)
    elsewhere = ~torch.eye(length, dtype=torch.bool)
    return float(fractions[:, elsewhere].log().mean().abs()), float(fractions.amax(2).mean())


class Repetition:
    """Rows in which a random stretch comes again and again; only what can be known counts: all but its first time.

    How long the stretch is differs from row to row, so that looking back by a fixed distance does not help: a model
    has to find the last place of the current token and read on from there, which is what induction heads do.
    """

    vocab_size = 64

    def __init__(self, *, sequence_length: int = 64, seed: int = 0):
        self.sequence_length, self.seed = sequence_length, seed
        if sequence_length < 8:
            raise SettingError(f"Repetition: sequence_length must be at least 8, got {sequence_length}")

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """The samples with these numbers, as a batch."""
        parts = [self._row(seeded_generator("repetition", sample, self.seed)) for sample in samples]
        return Batch(torch.stack([tokens for tokens, _ in parts]), torch.stack([targets for _, targets in parts]))

    def _row(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        period = int(torch.randint(self.sequence_length // 4, self.sequence_length // 2 + 1, (), generator=random))
        stretch = torch.randint(self.vocab_size, (period,), generator=random)
        row = stretch.repeat(-(-(self.sequence_length + 1) // period))[: self.sequence_length + 1]
        targets = row[1:].clone()
        targets[: period - 1] = IGNORE_INDEX
        return row[:-1], targets


class ReversalModel(nn.Module):
    """One layer of attention between an embedding and the scores of every token: logits (batch, position, vocab_size).

    Every token sees all others. Without positions the output of a token depends on which tokens there are and not on
    where they are, so that no weights whatever can reverse.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        sequence_length: int,
        hidden_size: int = 64,
        num_heads: int = 4,
        with_positions: bool = True,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = LearnedPositions(sequence_length, hidden_size) if with_positions else None
        self.attention = MultiHeadAttention(hidden_size=hidden_size, num_heads=num_heads)
        self.head = Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position_ids(tokens.shape[1], device=tokens.device))
        return self.head(x + self.attention(x))
