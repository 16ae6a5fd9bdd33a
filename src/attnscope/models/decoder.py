"""The decoder: a text in, the scores of every next token out. One class expresses GPT-2 and the Llama family.

In: token ids (batch, position). Out: logits (batch, position, vocabulary).
Does not know: text, sampling, checkpoints. What differs between families stands in `DecoderConfig`.
Memory: O(n * width) a layer, and a logit for each position and token of the vocabulary; `features` leaves those out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from attnscope.attention import Causal, Full, Mask, Window
from attnscope.attention.positions import LearnedPositions, position_ids, sinusoidal
from attnscope.attention.rotary import Rotary, rotation
from attnscope.errors import SettingError
from attnscope.models.cache import Cache
from attnscope.models.layers import Activation, Block, FeedForward, MultiHeadAttention
from attnscope.models.linear import Linear, linear
from attnscope.models.settings import check_choice, check_network, check_sizes, check_tokens


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder. The defaults are GPT-2's; see `attnscope.models.sizes` for published ones."""

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
    """The longest text of the training: a limit for learned positions, no limit for rotary ones."""
    key_heads: int | None = None
    """Fewer heads for keys and values, each read by heads / key_heads queries; None for as many as heads."""
    head_dim: int | None = None
    """The width of a head; None for width / heads."""
    positions: Rotary | Literal["learned", "sinusoidal", "none"] = "learned"
    """How a token knows where it stands."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    norm_eps: float = 1e-5
    """Added to the variance before its root is taken."""
    head_norm: bool = False
    """Whether queries and keys pass an RMSNorm of their own, head by head."""
    activation: Activation = "gelu_tanh"
    """What bends the feed-forward network."""
    gated: bool = False
    """Whether half of the feed-forward network gates the other half."""
    query_key_value_bias: bool = True
    """Whether the projection to queries, keys and values adds a bias."""
    output_bias: bool = True
    """Whether the projection after attention adds a bias."""
    feed_forward_bias: bool = True
    """Whether the feed-forward network adds biases."""
    windows: tuple[int | None, ...] | None = None
    """For each block, how many tokens back its queries see (themselves included), or None for all of them."""
    tied: bool = True
    """Whether the scores of the next token are products with the token embeddings themselves."""
    dropout: float = 0.0
    """The share of activations and attention weights dropped in training."""

    def __post_init__(self):
        check_sizes(self, "vocab_size", "width", "depth", "heads", "hidden", "max_length", "key_heads", "head_dim")
        if self.windows is not None and len(self.windows) != self.depth:
            raise SettingError(f"DecoderConfig.windows has {len(self.windows)} entries for {self.depth} blocks")
        if not isinstance(self.positions, Rotary):
            check_choice("DecoderConfig.positions", self.positions, ("learned", "sinusoidal", "none"))
        check_choice("DecoderConfig.norm", self.norm, ("layer", "rms"))
        check_network("DecoderConfig", self.activation, self.dropout)


class Decoder(nn.Module):
    """Embeddings, a stack of blocks that look back only, a norm, and the scores of the next token.

    >>> config = DecoderConfig(vocab_size=50, width=16, depth=2, heads=4, hidden=64, max_length=32)
    >>> Decoder(config)(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 50])
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        learned = config.positions == "learned"
        self.position_embedding = LearnedPositions(config.max_length, config.width) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.depth))
        self.norm = make_norm(config)
        self.head = None if config.tied else Linear(config.width, config.vocab_size, bias=False)
        self.initialize()

    def forward(
        self, tokens: Tensor, *, mask: Mask = Full(), positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Logits (batch, position, vocabulary) of the token after each one; see `features`."""
        return self.logits(self.features(tokens, mask=mask, positions=positions, cache=cache))

    def features(
        self, tokens: Tensor, *, mask: Mask = Full(), positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """What the last norm hands to the scores, (batch, position, width), for tokens (batch, position).

        The mask narrows what a token sees beside looking back only: `Padding`, `Documents`, ... It speaks of all keys,
        those in the cache included. Positions (position,) or (batch, position) count from the cache's length if not
        given. The cache, if there is one, is extended by these tokens.
        """
        past = 0 if cache is None else cache.length
        if positions is None:
            positions = position_ids(tokens.shape[-1], offset=past, device=tokens.device)
        check_tokens(tokens, positions)
        x = self.embedding(tokens)
        turn = None
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoidal(positions, self.config.width, dtype=x.dtype, device=x.device)
        elif isinstance(self.config.positions, Rotary):
            turn = rotation(self.config.positions, positions, dtype=torch.promote_types(x.dtype, torch.float32))
        x = self.dropout(x)
        windows = self.config.windows or (None,) * self.config.depth
        masks = {window: looking_back(window, mask) for window in set(windows)}
        for index, block in enumerate(self.blocks):
            layer_cache = None if cache is None else cache[index]
            x = block(x, mask=masks[windows[index]], rotation=turn, cache=layer_cache)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """The scores of every token of the vocabulary, (..., vocabulary), from features (..., width)."""
        return linear(features, self.embedding.weight) if self.head is None else self.head(features)

    def new_cache(self, capacity: int | None = None) -> Cache:
        """An empty cache: of fixed size if a capacity is given, growing if not."""
        return Cache(layers=self.config.depth, capacity=capacity)

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw projections and embeddings as GPT-2 does: small, and smaller where the depth adds them up."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:
                added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                parameter.normal_(std=0.02 / math.sqrt(2 * self.config.depth) if added else 0.02)


def looking_back(window: int | None, mask: Mask) -> Mask:
    """What a block sees: tokens up to its own, within its window and the mask."""
    back = Causal() if window is None else Window(window)
    return back if isinstance(mask, Full) else back & mask


def make_block(config: DecoderConfig) -> Block:
    """One pre-norm block of the decoder."""
    attention = MultiHeadAttention(
        width=config.width,
        heads=config.heads,
        key_heads=config.key_heads,
        head_dim=config.head_dim,
        bias=config.query_key_value_bias,
        output_bias=config.output_bias,
        head_norm=partial(nn.RMSNorm, eps=config.norm_eps) if config.head_norm else None,
        dropout=config.dropout,
    )
    feed_forward = FeedForward(
        width=config.width,
        hidden=config.hidden,
        activation=config.activation,
        gated=config.gated,
        bias=config.feed_forward_bias,
    )
    norm = partial(make_norm, config)
    return Block(attention=attention, feed_forward=feed_forward, norm=norm, dropout=config.dropout)


def make_norm(config: DecoderConfig) -> nn.Module:
    """The norm of this decoder."""
    return (nn.LayerNorm if config.norm == "layer" else nn.RMSNorm)(config.width, eps=config.norm_eps)
