"""The encoder: a text in, a description of each of its tokens out, each token seeing all others. The BERT family.

In: token ids (batch, position). Out: features (batch, position, width), or one vector a text.
Does not know: text, checkpoints, tasks. Memory: O(n * width) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import Full, Mask, Padding
from attnscope.attention.algebra import Sizes
from attnscope.attention.positions import LearnedPositions, position_ids
from attnscope.errors import ShapeError
from attnscope.models.layers import Activation, Block, FeedForward, MultiHeadAttention
from attnscope.models.linear import Linear
from attnscope.models.settings import check_network, check_sizes, check_tokens


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder of the BERT family."""

    vocab_size: int
    """How many tokens there are."""
    width: int
    """Numbers that describe a token between the layers."""
    depth: int
    """How many blocks follow each other."""
    heads: int
    """How many attention heads a block has."""
    hidden: int
    """The width inside the feed-forward network."""
    max_length: int
    """The longest text: positions are learned."""
    segments: int = 2
    """How many kinds of text a token may belong to: a question and its answer, for example."""
    norm_eps: float = 1e-12
    """Added to the variance before its root is taken."""
    activation: Activation = "gelu"
    """What bends the feed-forward network."""
    pooler: bool = True
    """Whether a last layer turns the first token into a vector for the whole text."""
    dropout: float = 0.0
    """The share of activations and attention weights dropped in training."""

    def __post_init__(self):
        check_sizes(self, "vocab_size", "width", "depth", "heads", "hidden", "max_length", "segments")
        check_network("EncoderConfig", self.activation, self.dropout)


class Encoder(nn.Module):
    """Three embeddings added, a norm, and a stack of post-norm blocks that see the whole text.

    >>> config = EncoderConfig(vocab_size=50, width=16, depth=2, heads=4, hidden=64, max_length=32)
    >>> Encoder(config)(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 16])
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = LearnedPositions(config.max_length, config.width)
        self.segment_embedding = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.depth))
        self.pooler = Linear(config.width, config.width) if config.pooler else None
        self.initialize()

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask = Full(),
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Features (batch, position, width); say which tokens are real with `mask=Padding(lengths)`."""
        if positions is None:
            positions = position_ids(tokens.shape[-1], device=tokens.device)
        check_tokens(tokens, positions)
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = self.embedding(tokens) + self.segment_embedding(segments) + self.position_embedding(positions)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask=mask)
        return x

    def pooled(self, features: Tensor) -> Tensor:
        """The vector of the whole text that was trained with the next-sentence task, (batch, width)."""
        if self.pooler is None:
            raise ShapeError("this encoder has no pooler (EncoderConfig.pooler is False); use mean_features")
        return torch.tanh(self.pooler(features[:, 0]))

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw projections and embeddings as BERT does."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:
                parameter.normal_(std=0.02)


def make_block(config: EncoderConfig) -> Block:
    """One post-norm block of the encoder."""
    attention = MultiHeadAttention(width=config.width, heads=config.heads, dropout=config.dropout)
    feed_forward = FeedForward(width=config.width, hidden=config.hidden, activation=config.activation)
    norm = partial(nn.LayerNorm, config.width, eps=config.norm_eps)
    return Block(attention=attention, feed_forward=feed_forward, norm=norm, order="post", dropout=config.dropout)


def mean_features(features: Tensor, padding: Padding | None = None) -> Tensor:
    """One vector of length 1 a text: the mean of its real tokens, as sentence encoders such as MiniLM are trained.

    Features (batch, position, width) give (batch, width).

    >>> mean_features(torch.tensor([[[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]]), Padding([2]))
    tensor([[0.6000, 0.8000]])
    """
    if padding is None:
        return F.normalize(features.mean(dim=1), dim=-1)
    sizes = Sizes(batch=features.shape[0], heads=1, queries=1, keys=features.shape[1])
    real = padding.to_dense(sizes, features.device)[:, 0, 0, :, None]
    # A padded position may hold anything, also infinities: it is left out of the sum, not multiplied by zero.
    total = features.masked_fill(~real, 0.0).sum(dim=1)
    return F.normalize(total / real.sum(dim=1).clamp(min=1), dim=-1)
