"""The decoder: token ids in, next-token logits out. One class covers GPT-2 and the Llama family.

In: input ids (batch, sequence). Out: logits (batch, sequence, vocab_size).
Does not know: text, sampling, checkpoints. The differences between families are fields of `DecoderConfig`.
Memory: O(n * hidden_size) per layer, and vocab_size logits per position; `features` leaves the logits out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from attnscope.attention import Causal, Full, Mask, Window
from attnscope.attention.positions import LearnedPositions, sinusoidal
from attnscope.attention.positions import position_ids as count_positions
from attnscope.attention.rotary import Rotary, rotation
from attnscope.errors import SettingError
from attnscope.models.config import (
    TransformerConfig,
    check_choice,
    check_input_ids,
    check_sizes,
    initialize_parameters,
)
from attnscope.models.kv_cache import KVCache
from attnscope.models.layers import Activation, Block, FeedForward, MultiHeadAttention
from attnscope.models.linear import Linear, linear


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """The shape of a decoder. The defaults are GPT-2's; `attnscope.models.published_configs` has published ones."""

    max_position_embeddings: int
    """Context length of the training; longer sequences fail with learned positions, but not with rotary ones."""
    num_kv_heads: int | None = None
    """Number of key-value heads, each shared by num_heads / num_kv_heads query heads; None for num_heads."""
    head_dim: int | None = None
    """Size of a head; None for hidden_size / num_heads."""
    position_encoding: Rotary | Literal["learned", "sinusoidal", "none"] = "learned"
    """How the model encodes token positions."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    qk_norm: bool = False
    """Whether queries and keys of each head pass an RMSNorm of their own."""
    activation: Activation = "gelu_tanh"
    """Activation of the feed-forward network."""
    gated: bool = False
    """Whether the feed-forward network is gated, as in SwiGLU."""
    qkv_bias: bool = True
    """Whether the query-key-value projection has a bias."""
    output_bias: bool = True
    """Whether the output projection of attention has a bias."""
    feed_forward_bias: bool = True
    """Whether the feed-forward network has biases."""
    sliding_windows: tuple[int | None, ...] | None = None
    """Sliding window of each block in tokens, the query's own included; None for full causal attention."""
    tie_word_embeddings: bool = True
    """Whether the token embeddings are also the output projection to logits."""

    def __post_init__(self):
        super().__post_init__()
        check_sizes(self, "max_position_embeddings", "num_kv_heads", "head_dim")
        if self.sliding_windows is not None and len(self.sliding_windows) != self.num_layers:
            raise SettingError(
                f"DecoderConfig.sliding_windows: expected an entry for each of {self.num_layers} blocks, "
                f"got {len(self.sliding_windows)}"
            )
        if not isinstance(self.position_encoding, Rotary):
            check_choice(self, "position_encoding", ("learned", "sinusoidal", "none"))
        check_choice(self, "norm", ("layer", "rms"))


class Decoder(nn.Module):
    """A causal language model: embeddings, pre-norm blocks with causal attention, a norm, and next-token logits.

    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> Decoder(config)(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 50])
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        learned = config.position_encoding == "learned"
        self.position_embedding = (
            LearnedPositions(config.max_position_embeddings, config.hidden_size) if learned else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.num_layers))
        self.norm = make_norm(config)
        self.head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size, bias=False)
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        mask: Mask = Full(),
        position_ids: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Compute next-token logits (batch, sequence, vocab_size); see `features` for the arguments.

        Args:
            input_ids: Token ids (batch, sequence).
            mask: Which keys each query attends to, in addition to the causal mask.
            position_ids: Positions (batch, sequence), if they do not count from the length of the cache.
            cache: KV cache, which is extended by the new keys and values.

        Returns:
            Logits (batch, sequence, vocab_size).
        """
        return self.logits(self.features(input_ids, mask=mask, position_ids=position_ids, cache=cache))

    def features(
        self,
        input_ids: Tensor,
        *,
        mask: Mask = Full(),
        position_ids: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Compute the hidden states after the last norm, from which `logits` follow.

        Args:
            input_ids: Token ids (batch, sequence).
            mask: Restricts attention further than the causal mask: `Padding`, `Documents`, ... It covers all keys,
                those in the cache included.
            position_ids: Positions (sequence,) or (batch, sequence); None to count on from the length of the cache.
            cache: KV cache, which is extended by these tokens.

        Returns:
            Hidden states (batch, sequence, hidden_size).

        Raises:
            ShapeError: If `input_ids` or `position_ids` have another shape.
        """
        past = 0 if cache is None else cache.length
        if position_ids is None:
            position_ids = count_positions(input_ids.shape[-1], offset=past, device=input_ids.device)
        check_input_ids(input_ids, position_ids)
        encoding = self.config.position_encoding
        x = self.embedding(input_ids)
        turn = None
        if self.position_embedding is not None:
            x = x + self.position_embedding(position_ids)
        elif encoding == "sinusoidal":
            x = x + sinusoidal(position_ids, self.config.hidden_size, dtype=x.dtype, device=x.device)
        elif isinstance(encoding, Rotary):
            turn = rotation(encoding, position_ids, dtype=torch.promote_types(x.dtype, torch.float32))
        x = self.dropout(x)
        windows = self.config.sliding_windows or (None,) * self.config.num_layers
        masks = {window: causal_mask(window, mask) for window in set(windows)}
        for index, block in enumerate(self.blocks):
            layer_cache = None if cache is None else cache[index]
            x = block(x, mask=masks[windows[index]], rotation=turn, cache=layer_cache)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Project hidden states (..., hidden_size) to logits (..., vocab_size).

        Args:
            features: Hidden states (..., hidden_size).

        Returns:
            Logits (..., vocab_size).
        """
        return linear(features, self.embedding.weight) if self.head is None else self.head(features)

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """Make an empty KV cache: preallocated for `capacity` tokens, or growing if that is None.

        Args:
            capacity: The number of tokens that it is allocated for; None lets it grow.

        Returns:
            A KV cache for all layers.
        """
        return KVCache(num_layers=self.config.num_layers, capacity=capacity)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.weight.device

    def initialize(self) -> None:
        """Draw the parameters as GPT-2 does: std 0.02, scaled down by depth for projections to the residual stream."""

        def draw(name: str, parameter: nn.Parameter) -> None:
            is_residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
            parameter.normal_(std=0.02 / math.sqrt(2 * self.config.num_layers) if is_residual else 0.02)

        initialize_parameters(self, draw)


def causal_mask(window: int | None, mask: Mask) -> Mask:
    """The causal mask of a block, with its sliding window, combined with another mask."""
    causal = Causal() if window is None else Window(window)
    return causal if isinstance(mask, Full) else causal & mask


def make_block(config: DecoderConfig) -> Block:
    """One pre-norm block of the decoder."""
    attention = MultiHeadAttention(
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        bias=config.qkv_bias,
        output_bias=config.output_bias,
        qk_norm=partial(nn.RMSNorm, eps=config.norm_eps) if config.qk_norm else None,
        dropout=config.dropout,
    )
    feed_forward = FeedForward(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        activation=config.activation,
        gated=config.gated,
        bias=config.feed_forward_bias,
    )
    norm = partial(make_norm, config)
    return Block(attention=attention, feed_forward=feed_forward, norm=norm, dropout=config.dropout)


def make_norm(config: DecoderConfig) -> nn.Module:
    """The norm of this decoder."""
    return (nn.LayerNorm if config.norm == "layer" else nn.RMSNorm)(config.hidden_size, eps=config.norm_eps)
