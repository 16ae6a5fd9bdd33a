"""Synthetic tasks: reverse a sequence, and continue a sequence that repeats.

In: sample numbers. Out: batches; a sample number always gives the same sequence. Also `ReversalModel`, a minimal model
that can reverse a sequence with position embeddings and cannot without them.
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
        """Return the samples with these numbers."""
        drawn = (
            torch.randint(
                self.vocab_size, (self.sequence_length,), generator=seeded_generator("reversal", sample, self.seed)
            )
            for sample in samples
        )
        tokens = torch.stack(list(drawn))
        return Batch(tokens, tokens.flip(1))


def best_without_positions(sequences: Tensor) -> tuple[float, float]:
    """Return the best loss and accuracy at reversing sequences of even length for a model that ignores token order.

    For such a model, the token at the mirrored position is any other token of the sequence with equal probability.

    >>> best_without_positions(torch.tensor([[4, 4, 4, 4]])), best_without_positions(torch.tensor([[1, 2, 3, 4]]))[1]
    ((0.0, 1.0), 0.3333333333333333)
    """
    length = sequences.shape[1]
    if length % 2:
        raise SettingError(f"best_without_positions: expected an even sequence length, got {length}")
    same = (sequences[:, :, None] == sequences[:, None, :]).double()
    # For positions i and j of a sequence: the fraction of positions other than i that have the token of j.
    fractions = (same.sum(2)[:, None, :] - same) / (length - 1)
    elsewhere = ~torch.eye(length, dtype=torch.bool)
    return float(fractions[:, elsewhere].log().mean().abs()), float(fractions.amax(2).mean())


class Repetition:
    """Sequences in which a random segment is repeated; its first occurrence has no targets, being unpredictable.

    The length of the segment differs between sequences, so attending to a fixed distance does not help. A model has to
    find the last occurrence of the current token and predict the token after it, as induction heads do.
    """

    vocab_size = 64

    def __init__(self, *, sequence_length: int = 64, seed: int = 0):
        self.sequence_length, self.seed = sequence_length, seed
        if sequence_length < 8:
            raise SettingError(f"Repetition: sequence_length must be at least 8, got {sequence_length}")

    def get_batch(self, samples: Sequence[int]) -> Batch:
        """Return the samples with these numbers."""
        parts = [self._sequence(seeded_generator("repetition", sample, self.seed)) for sample in samples]
        return Batch(torch.stack([tokens for tokens, _ in parts]), torch.stack([targets for _, targets in parts]))

    def _sequence(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        period = int(torch.randint(self.sequence_length // 4, self.sequence_length // 2 + 1, (), generator=random))
        segment = torch.randint(self.vocab_size, (period,), generator=random)
        tokens = segment.repeat(-(-(self.sequence_length + 1) // period))[: self.sequence_length + 1]
        targets = tokens[1:].clone()
        targets[: period - 1] = IGNORE_INDEX
        return tokens[:-1], targets


class ReversalModel(nn.Module):
    """An embedding, one attention layer and an unembedding; returns logits (batch, positions, vocab_size).

    Every token attends to all others. Without position embeddings, the output at a token does not depend on the order
    of the others, so no parameters can reverse a sequence.
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
