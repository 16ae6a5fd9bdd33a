"""The layers of a transformer: attention with its projections, the feed-forward network, and the block of both.

In: activations (batch, position, width). Out: the same shape.
Does not know: tokens, embeddings, whole models, checkpoints. What a query may see is a mask, where it stands is a
rotation, what came before is a cache; all three are handed in.
Memory: O(n * width); the n x n weights are never built, also not by `return_matrix=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import Full, Mask, attend
from attnscope.attention.rotary import Rotation, apply_rotation
from attnscope.errors import ShapeError
from attnscope.matrix import AttentionMatrix
from attnscope.models.cache import LayerCache
from attnscope.models.linear import Linear, linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Order = Literal["pre", "post"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class Memory(NamedTuple):
    """Keys and values of a text that another one attends to, each (batch, key heads, keys, head dim)."""

    key: Tensor
    value: Tensor


class MultiHeadAttention(nn.Module):
    """Many heads of attention between one projection to queries, keys and values and one back to the width.

    Self-attention is `attention(x)`; cross-attention is `attention(x, memory)`. Query head h reads key head
    h // (heads / key_heads): fewer key heads are grouped-query attention, one is multi-query attention.

    >>> import torch
    >>> attention = MultiHeadAttention(width=8, heads=2)
    >>> output, matrix = attention(torch.randn(1, 5, 8), return_matrix=True)
    >>> output.shape, matrix.shape
    (torch.Size([1, 5, 8]), torch.Size([1, 2, 5, 5]))
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        key_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        head_norm: Callable[[int], nn.Module] | None = None,
        dropout: float = 0.0,
    ):
        """`head_norm` makes a norm for the queries and one for the keys, of one head each (Qwen3)."""
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        if heads < 1 or key_heads < 1 or heads % key_heads:
            raise ShapeError(f"heads must be a multiple of key_heads, but they are {heads} and {key_heads}")
        if head_dim is None and width % heads:
            raise ShapeError(f"width {width} does not divide into {heads} heads; choose another, or give head_dim")
        self.heads, self.key_heads, self.head_dim = heads, key_heads, head_dim or width // heads
        self.dropout = dropout
        rows = (heads + 2 * key_heads) * self.head_dim
        self.query_key_value = Linear(width, rows, bias=bias)
        self.output = Linear(heads * self.head_dim, width, bias=bias if output_bias is None else output_bias)
        self.query_norm = head_norm(self.head_dim) if head_norm else None
        self.key_norm = head_norm(self.head_dim) if head_norm else None

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | Memory | None = ...,
        *,
        mask: Mask = ...,
        rotation: Rotation | None = ...,
        cache: LayerCache | None = ...,
        return_matrix: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | Memory | None = ...,
        *,
        mask: Mask = ...,
        rotation: Rotation | None = ...,
        cache: LayerCache | None = ...,
        return_matrix: Literal[True],
    ) -> tuple[Tensor, AttentionMatrix]: ...
    def forward(
        self,
        x: Tensor,
        memory: Tensor | Memory | None = None,
        *,
        mask: Mask = Full(),
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        return_matrix: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMatrix]:
        """Attend from x (batch, queries, width) to itself and what the cache holds, or to a memory.

        With `return_matrix`, the AttentionMatrix (batch, heads, queries, keys) comes beside the output: the weights
        of the textbooks, which can be read, reduced and drawn, in O(n) memory.
        """
        if memory is None:
            query, key, value = self._from_itself(x, rotation)
            if cache is not None:
                key, value = cache.extend(key, value)
        else:
            if rotation is not None or cache is not None:
                raise ShapeError("cross-attention has neither rotation nor cache: keep what remember(memory) returns")
            query = self._split(self._project(x, 0, self.heads))
            query = query if self.query_norm is None else self.query_norm(query)
            key, value = memory if isinstance(memory, Memory) else self.remember(memory)
        heads = attend(query, key, value, mask=mask, dropout=self.dropout if self.training else 0.0)
        output = self.output(heads.transpose(1, 2).flatten(2))
        if return_matrix:
            return output, AttentionMatrix(query, key, mask=mask, value=value)
        return output

    def remember(self, memory: Tensor) -> Memory:
        """Keys and values of a text (batch, keys, width) that stays the same while others attend to it."""
        key, value = self._split(self._project(memory, self.heads, 2 * self.key_heads)).chunk(2, dim=1)
        return Memory(key if self.key_norm is None else self.key_norm(key), value)

    def _from_itself(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        heads = self._split(self.query_key_value(x))
        query_key, value = heads.narrow(1, 0, self.heads + self.key_heads), heads[:, self.heads + self.key_heads :]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query_key[:, : self.heads]), self.key_norm(query_key[:, self.heads :])
            query_key = torch.cat((query, key), dim=1)
        if rotation is not None:
            query_key = apply_rotation(query_key, rotation)  # both in one go: in decoding, calls are what costs
        return query_key[:, : self.heads], query_key[:, self.heads :], value

    def _project(self, x: Tensor, first_head: int, num_heads: int) -> Tensor:
        """Some heads of the fused projection alone."""
        rows = slice(first_head * self.head_dim, (first_head + num_heads) * self.head_dim)
        bias = self.query_key_value.bias
        return linear(x, self.query_key_value.weight[rows], None if bias is None else bias[rows])

    def _split(self, x: Tensor) -> Tensor:
        """(batch, position, heads * head dim) as (batch, head, position, head dim)."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """Each position alone: up to `hidden` numbers, through the activation, and back.

    With `gated`, half of the up projection goes through the activation and multiplies the other half; gated with
    "silu" is SwiGLU (arXiv:2002.05202).
    """

    def __init__(
        self,
        *,
        width: int,
        hidden: int,
        activation: Activation = "gelu",
        gated: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[activation], gated
        self.up = Linear(width, 2 * hidden if gated else hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) in, and the same out."""
        if not self.gated:
            return self.down(self.activation(self.up(x)))
        gate, x = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * x)


class Block(nn.Module):
    """Attention, then feed-forward, each added to its input; cross-attention between them where it is given.

    The order "pre" takes the norm of what goes into each part and leaves the sum alone (GPT-2, Llama); "post" takes
    the norm of the sum (the first Transformer, BERT).
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        norm: Callable[[], nn.Module],
        order: Order = "pre",
        cross_attention: MultiHeadAttention | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.order: Order = order
        self.attention, self.attention_norm = attention, norm()
        self.cross_attention, self.cross_norm = cross_attention, norm() if cross_attention else None
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Memory | None = None,
        *,
        mask: Mask = Full(),
        memory_mask: Mask = Full(),
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(batch, position, width) in, and the same out; see `MultiHeadAttention` for what may go with it."""
        attention = partial(self.attention, mask=mask, rotation=rotation, cache=cache)
        x = self._add(x, self.attention_norm, attention)
        if self.cross_attention is not None and self.cross_norm is not None:
            if memory is None:
                raise ShapeError("this block has cross-attention, but no memory arrived for it to attend to")
            x = self._add(x, self.cross_norm, partial(self.cross_attention, memory=memory, mask=memory_mask))
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def _add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        change = part(norm(x) if self.order == "pre" else x)
        x = x + F.dropout(change, self.dropout) if self.training else x + change
        return x if self.order == "pre" else norm(x)
