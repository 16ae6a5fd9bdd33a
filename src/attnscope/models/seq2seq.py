"""The first Transformer (arXiv:1706.03762): an encoder reads the source, a decoder writes the target and looks at it.

In: token ids of source and target, (batch, position) each. Out: logits (batch, target position, vocabulary).
Does not know: text, sampling, checkpoints. Memory: O((source + target) * width) a layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnscope.attention import Causal, Full, Mask
from attnscope.attention.positions import position_ids, sinusoidal
from attnscope.models.cache import Cache
from attnscope.models.layers import Activation, Block, FeedForward, Memory, MultiHeadAttention, Order
from attnscope.models.linear import linear
from attnscope.models.settings import check_choice, check_network, check_sizes, check_tokens


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The shape of an encoder-decoder. The defaults are those of 2017."""

    vocab_size: int
    """How many tokens there are; source and target share them."""
    width: int
    """Numbers that describe a token between the layers."""
    depth: int
    """How many blocks the encoder has, and how many the decoder."""
    heads: int
    """How many attention heads a block has."""
    hidden: int
    """The width inside the feed-forward networks."""
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    """How a token knows where it stands."""
    order: Order = "post"
    """Whether norms stand after each sum, as in 2017, or before each part."""
    final_norm: bool = False
    """Whether a norm follows the last block of each stack; pre-norm stacks want one."""
    norm_eps: float = 1e-5
    """Added to the variance before its root is taken."""
    activation: Activation = "relu"
    """What bends the feed-forward networks."""
    dropout: float = 0.0
    """The share of activations and attention weights dropped in training."""

    def __post_init__(self):
        check_sizes(self, "vocab_size", "width", "depth", "heads", "hidden")
        check_choice("Seq2SeqConfig.positions", self.positions, ("sinusoidal", "none"))
        check_choice("Seq2SeqConfig.order", self.order, ("pre", "post"))
        check_network("Seq2SeqConfig", self.activation, self.dropout)


class Seq2Seq(nn.Module):
    """Encoder and decoder with one table of embeddings, which also scores the next token.

    >>> config = Seq2SeqConfig(vocab_size=50, width=16, depth=2, heads=4, hidden=64)
    >>> source, target = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[9, 2]])
    >>> Seq2Seq(config)(source, target).shape
    torch.Size([1, 2, 50])
    """

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(make_block(config, cross=False) for _ in range(config.depth))
        self.decoder = nn.ModuleList(make_block(config, cross=True) for _ in range(config.depth))
        self.encoder_norm = make_norm(config) if config.final_norm else None
        self.decoder_norm = make_norm(config) if config.final_norm else None
        self.initialize()

    def forward(
        self, source: Tensor, target: Tensor, *, source_mask: Mask = Full(), target_mask: Mask = Full()
    ) -> Tensor:
        """Logits (batch, target position, vocabulary) of the token after each one of the target."""
        memory = self.encode(source, mask=source_mask)
        return self.logits(self.decode(target, memory, mask=target_mask, source_mask=source_mask))

    def encode(self, source: Tensor, *, mask: Mask = Full()) -> Tensor:
        """Features of the source, (batch, source position, width)."""
        x = self._embed(source, position_ids(source.shape[1]))
        for block in self.encoder:
            x = block(x, mask=mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def remember(self, memory: Tensor) -> list[Memory]:
        """The keys and values of the source for each block of the decoder, to be made once for many calls of decode."""
        return [cast(MultiHeadAttention, block.cross_attention).remember(memory) for block in self.decoder]

    def decode(
        self,
        target: Tensor,
        memory: Tensor | list[Memory],
        *,
        mask: Mask = Full(),
        source_mask: Mask = Full(),
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Features of the target, (batch, target position, width), each token looking back and at the whole source."""
        past = 0 if cache is None else cache.length
        positions = position_ids(target.shape[-1], offset=past) if positions is None else positions
        check_tokens(target, positions)
        x = self._embed(target, positions)
        for index, block in enumerate(self.decoder):
            layer_memory = memory if isinstance(memory, Tensor) else memory[index]
            layer_cache = None if cache is None else cache[index]
            x = block(x, layer_memory, mask=Causal() & mask, memory_mask=source_mask, cache=layer_cache)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """The scores of every token, (..., vocabulary), from features (..., width)."""
        return linear(features, self.embedding.weight)

    def given(self, source: Tensor, *, source_mask: Mask = Full()) -> Given:
        """The decoder with this source before it, which `generate` takes like any other decoder."""
        return Given(self, self.remember(self.encode(source, mask=source_mask)), source_mask)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.width)
        if self.config.positions == "sinusoidal":
            x = x + sinusoidal(positions, self.config.width, dtype=x.dtype, device=x.device)
        return self.dropout(x)

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw projections by Xavier's rule and embeddings of about length 1."""
        for name, parameter in self.named_parameters():
            if name == "embedding.weight":
                parameter.normal_(std=self.config.width**-0.5)
            elif name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)


class Given(NamedTuple):
    """A Seq2Seq that has read its source: writes targets like a decoder."""

    model: Seq2Seq
    memory: list[Memory]
    source_mask: Mask

    def features(
        self, tokens: Tensor, *, mask: Mask = Full(), positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """See `Seq2Seq.decode`."""
        return self.model.decode(
            tokens, self.memory, mask=mask, source_mask=self.source_mask, positions=positions, cache=cache
        )

    def logits(self, features: Tensor) -> Tensor:
        """See `Seq2Seq.logits`."""
        return self.model.logits(features)

    def new_cache(self, capacity: int | None = None) -> Cache:
        """An empty cache for the target."""
        return Cache(layers=self.model.config.depth, capacity=capacity)


def make_block(config: Seq2SeqConfig, *, cross: bool) -> Block:
    """One block of the encoder, or with `cross` of the decoder."""

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(width=config.width, heads=config.heads, dropout=config.dropout)

    return Block(
        attention=attention(),
        cross_attention=attention() if cross else None,
        feed_forward=FeedForward(width=config.width, hidden=config.hidden, activation=config.activation),
        norm=partial(make_norm, config),
        order=config.order,
        dropout=config.dropout,
    )


def make_norm(config: Seq2SeqConfig) -> nn.Module:
    """The norm of this model."""
    return nn.LayerNorm(config.width, eps=config.norm_eps)
