"""The encoder-decoder of Vaswani et al. 2017 (arXiv:1706.03762), with cross-attention.

In: token ids of source and target, each (batch, sequence). Out: logits (batch, target sequence, vocab_size).
Does not know: text, sampling, checkpoints. Memory: O((source + target) * hidden_size) per layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnscope.attention import Full, Mask
from attnscope.attention.positions import position_ids as count_positions
from attnscope.attention.positions import sinusoidal
from attnscope.models.config import TransformerConfig, check_choice, check_input_ids, initialize_parameters
from attnscope.models.decoder import causal_mask
from attnscope.models.kv_cache import KVCache
from attnscope.models.layers import Activation, Block, CrossAttentionCache, FeedForward, MultiHeadAttention
from attnscope.models.linear import linear


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(TransformerConfig):
    """The shape of an encoder-decoder. The defaults are those of 2017; source and target share one vocabulary."""

    position_encoding: Literal["sinusoidal", "none"] = "sinusoidal"
    """How the model encodes token positions."""
    norm_first: bool = False
    """Whether norms come before each sublayer (pre-norm) or after each residual sum (post-norm, as in 2017)."""
    final_norm: bool = False
    """Whether a norm follows the last block of each stack, as pre-norm stacks need."""
    activation: Activation = "relu"
    """Activation of the feed-forward networks."""

    def __post_init__(self):
        super().__post_init__()
        check_choice(self, "position_encoding", ("sinusoidal", "none"))


class Seq2Seq(nn.Module):
    """An encoder and a decoder with shared token embeddings, which are also the output projection to logits.

    >>> config = Seq2SeqConfig(vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64)
    >>> source, target = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[9, 2]])
    >>> Seq2Seq(config)(source, target).shape
    torch.Size([1, 2, 50])
    """

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(make_block(config, cross=False) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(make_block(config, cross=True) for _ in range(config.num_layers))
        self.encoder_norm = make_norm(config) if config.final_norm else None
        self.decoder_norm = make_norm(config) if config.final_norm else None
        self.initialize()

    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor, *, mask: Mask = Full(), decoder_mask: Mask = Full()
    ) -> Tensor:
        """Compute next-token logits of the target.

        Args:
            input_ids: Token ids of the source (batch, source sequence).
            decoder_input_ids: Token ids of the target (batch, target sequence).
            mask: Which source tokens are attended to, in the encoder and in cross-attention.
            decoder_mask: Restricts the target's attention to itself further than the causal mask.

        Returns:
            Logits (batch, target sequence, vocab_size).
        """
        memory = self.encode(input_ids, mask=mask)
        return self.logits(self.decode(decoder_input_ids, memory, mask=decoder_mask, memory_mask=mask))

    def encode(self, input_ids: Tensor, *, mask: Mask = Full()) -> Tensor:
        """Compute the features of the source (batch, source sequence, hidden_size), the memory of `decode`.

        Args:
            input_ids: Token ids of the source (batch, source sequence).
            mask: Which source tokens attend to each other.

        Returns:
            The memory, (batch, source sequence, hidden_size).
        """
        x = self._embed(input_ids, count_positions(input_ids.shape[1]))
        for block in self.encoder:
            x = block(x, mask=mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def project_memory(self, memory: Tensor) -> list[CrossAttentionCache]:
        """Project the source to keys and values of every decoder block once, for many calls of `decode`.

        Args:
            memory: What `encode` returned.

        Returns:
            Keys and values of each decoder block.
        """
        return [cast(MultiHeadAttention, block.cross_attention).project_memory(memory) for block in self.decoder]

    def decode(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor | list[CrossAttentionCache],
        *,
        mask: Mask = Full(),
        memory_mask: Mask = Full(),
        position_ids: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Compute the features of the target.

        Args:
            decoder_input_ids: Token ids of the target (batch, target sequence).
            memory: What `encode` or `project_memory` returned.
            mask: Restricts the target's attention to itself further than the causal mask.
            memory_mask: Which source tokens are attended to.
            position_ids: Positions of the target tokens; None to count on from the length of the cache.
            cache: KV cache of the target, which is extended by these tokens.

        Returns:
            Features (batch, target sequence, hidden_size).
        """
        past = 0 if cache is None else cache.length
        if position_ids is None:
            position_ids = count_positions(decoder_input_ids.shape[-1], offset=past)
        check_input_ids(decoder_input_ids, position_ids)
        x = self._embed(decoder_input_ids, position_ids)
        for index, block in enumerate(self.decoder):
            layer_memory = memory if isinstance(memory, Tensor) else memory[index]
            layer_cache = None if cache is None else cache[index]
            x = block(x, layer_memory, mask=causal_mask(None, mask), memory_mask=memory_mask, cache=layer_cache)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Project features (..., hidden_size) to logits (..., vocab_size).

        Args:
            features: Hidden states (..., hidden_size).

        Returns:
            Logits (..., vocab_size).
        """
        return linear(features, self.embedding.weight)

    def condition_on(self, input_ids: Tensor, *, mask: Mask = Full()) -> ConditionedDecoder:
        """Encode a source (batch, source sequence) and return its decoder, which `generate` accepts as a model.

        Args:
            input_ids: Token ids of the source (batch, source sequence).
            mask: Which source tokens attend to each other.

        Returns:
            A model of the target alone.
        """
        return ConditionedDecoder(self, self.project_memory(self.encode(input_ids, mask=mask)), mask)

    def _embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids) * math.sqrt(self.config.hidden_size)
        if self.config.position_encoding == "sinusoidal":
            x = x + sinusoidal(position_ids, self.config.hidden_size, dtype=x.dtype, device=x.device)
        return self.dropout(x)

    def initialize(self) -> None:
        """Draw projections by Xavier's rule, and embeddings with a norm of about 1."""

        def draw(name: str, parameter: nn.Parameter) -> None:
            if name == "embedding.weight":
                parameter.normal_(std=self.config.hidden_size**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

        initialize_parameters(self, draw)


class ConditionedDecoder(NamedTuple):
    """A Seq2Seq with an encoded source: a causal language model of the target."""

    model: Seq2Seq
    memory: list[CrossAttentionCache]
    memory_mask: Mask

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.model.embedding.weight.device

    def features(
        self,
        input_ids: Tensor,
        *,
        mask: Mask = Full(),
        position_ids: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Compute the features of the target; see `Seq2Seq.decode`."""
        return self.model.decode(
            input_ids, self.memory, mask=mask, memory_mask=self.memory_mask, position_ids=position_ids, cache=cache
        )

    def logits(self, features: Tensor) -> Tensor:
        """Project features to logits; see `Seq2Seq.logits`."""
        return self.model.logits(features)

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """Make an empty KV cache for the target."""
        return KVCache(num_layers=self.model.config.num_layers, capacity=capacity)


def make_block(config: Seq2SeqConfig, *, cross: bool) -> Block:
    """One block of the encoder, or with `cross` of the decoder."""

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(hidden_size=config.hidden_size, num_heads=config.num_heads, dropout=config.dropout)

    return Block(
        attention=attention(),
        cross_attention=attention() if cross else None,
        feed_forward=FeedForward(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            activation=config.activation,
        ),
        norm=partial(make_norm, config),
        norm_first=config.norm_first,
        dropout=config.dropout,
    )


def make_norm(config: Seq2SeqConfig) -> nn.Module:
    """The norm of this model."""
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
