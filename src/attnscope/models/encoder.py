"""The encoder: token ids in, one vector per token out, with bidirectional attention. The BERT family.

In: input ids (batch, sequence). Out: features (batch, sequence, hidden_size), or one vector per sequence.
Does not know: text, checkpoints, tasks. Memory: O(n * hidden_size) per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import Full, Mask, Padding
from attnscope.attention.algebra import Sizes
from attnscope.attention.positions import LearnedPositions
from attnscope.attention.positions import position_ids as count_positions
from attnscope.errors import ShapeError
from attnscope.models.config import TransformerConfig, check_input_ids, check_sizes, initialize_parameters
from attnscope.models.layers import Block, FeedForward, MultiHeadAttention
from attnscope.models.linear import Linear


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """The shape of an encoder of the BERT family."""

    max_position_embeddings: int
    """Longest sequence, since positions are learned."""
    type_vocab_size: int = 2
    """Number of token types (segments), such as question and answer."""
    norm_eps: float = 1e-12
    """Epsilon of the norms."""
    pooler: bool = True
    """Whether there is a layer that turns the first token into a vector of the sequence."""

    def __post_init__(self):
        super().__post_init__()
        check_sizes(self, "max_position_embeddings", "type_vocab_size")


class Encoder(nn.Module):
    """Token, position and token-type embeddings, a norm, and post-norm blocks with bidirectional attention.

    >>> config = EncoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> Encoder(config)(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 16])
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = LearnedPositions(config.max_position_embeddings, config.hidden_size)
        self.segment_embedding = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.num_layers))
        self.pooler = Linear(config.hidden_size, config.hidden_size) if config.pooler else None
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        mask: Mask = Full(),
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute one vector per token.

        Args:
            input_ids: Token ids (batch, sequence).
            mask: Which tokens are attended to; `Padding(lengths)` for padded batches.
            position_ids: Positions (sequence,) or (batch, sequence); None to count from 0.
            token_type_ids: Token types (batch, sequence); None for type 0.

        Returns:
            Features (batch, sequence, hidden_size).

        Raises:
            ShapeError: If `input_ids` or `position_ids` have another shape.
        """
        if position_ids is None:
            position_ids = count_positions(input_ids.shape[-1], device=input_ids.device)
        check_input_ids(input_ids, position_ids)
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embedding(input_ids) + self.segment_embedding(token_type_ids) + self.position_embedding(position_ids)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask=mask)
        return x

    def pool(self, features: Tensor) -> Tensor:
        """Turn features (batch, sequence, hidden_size) into BERT's pooled output (batch, hidden_size).

        Args:
            features: Hidden states (batch, sequence, hidden_size).

        Returns:
            One vector per sequence.

        Raises:
            ShapeError: If the encoder has no pooler.
        """
        if self.pooler is None:
            raise ShapeError("this encoder has no pooler (EncoderConfig.pooler is False); use mean_pooling")
        return torch.tanh(self.pooler(features[:, 0]))

    def initialize(self) -> None:
        """Draw the parameters as BERT does: std 0.02."""
        initialize_parameters(self, lambda _, parameter: parameter.normal_(std=0.02))


def make_block(config: EncoderConfig) -> Block:
    """One post-norm block of the encoder."""
    size = config.hidden_size
    return Block(
        attention=MultiHeadAttention(hidden_size=size, num_heads=config.num_heads, dropout=config.dropout),
        feed_forward=FeedForward(
            hidden_size=size, intermediate_size=config.intermediate_size, activation=config.activation
        ),
        norm=partial(nn.LayerNorm, size, eps=config.norm_eps),
        norm_first=False,
        dropout=config.dropout,
    )


def mean_pooling(features: Tensor, padding: Padding | None = None) -> Tensor:
    """Average the features of a sequence to one vector of norm 1, as sentence encoders such as MiniLM do.

    Args:
        features: Features (batch, sequence, hidden_size).
        padding: Which tokens are real; None for all.

    Returns:
        Vectors (batch, hidden_size).

    >>> mean_pooling(torch.tensor([[[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]]), Padding([2]))
    tensor([[0.6000, 0.8000]])
    """
    if padding is None:
        return F.normalize(features.mean(dim=1), dim=-1)
    sizes = Sizes(batch=features.shape[0], heads=1, queries=1, keys=features.shape[1])
    real = padding.to_dense(sizes, features.device)[:, 0, 0, :, None]
    # Padded positions may hold infinities, so they are left out of the sum, not multiplied by zero.
    total = features.masked_fill(~real, 0.0).sum(dim=1)
    return F.normalize(total / real.sum(dim=1).clamp(min=1), dim=-1)
