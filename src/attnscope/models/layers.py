"""The layers of a transformer: multi-head attention, the feed-forward network, and the block of both.

In: activations (batch, sequence, hidden_size). Out: the same shape.
Does not know: tokens, embeddings, whole models, checkpoints. The mask, the rotation and the KV cache are passed in.
Memory: O(n * hidden_size); the n x n weights are never built, also not by `return_matrix=True`.
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
from attnscope.models.kv_cache import LayerCache
from attnscope.models.linear import Linear, linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class CrossAttentionCache(NamedTuple):
    """Projected keys and values of a memory, each (batch, num_kv_heads, keys, head_dim)."""

    key: Tensor
    value: Tensor


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a fused query-key-value projection and an output projection.

    Self-attention is `attention(x)`; cross-attention is `attention(x, memory)`. Query head h uses key-value head
    h // (num_heads / num_kv_heads): fewer key-value heads than heads are grouped-query attention, one is multi-query
    attention.

    Args:
        hidden_size: Size of inputs and outputs.
        num_heads: Number of query heads.
        num_kv_heads: Number of key-value heads; None for num_heads.
        head_dim: Size of a head; None for hidden_size / num_heads.
        bias: Whether the query-key-value projection has a bias.
        output_bias: Whether the output projection has a bias; None for the same as `bias`.
        qk_norm: Makes a norm of size head_dim, once for queries and once for keys (Qwen3); None for no norm.
        dropout: Dropout probability of attention weights in training.

    Raises:
        ShapeError: If the heads do not divide evenly.

    >>> import torch
    >>> attention = MultiHeadAttention(hidden_size=8, num_heads=2)
    >>> output, matrix = attention(torch.randn(1, 5, 8), return_matrix=True)
    >>> output.shape, matrix.shape
    (torch.Size([1, 5, 8]), torch.Size([1, 2, 5, 5]))
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ShapeError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        if head_dim is None and hidden_size % num_heads:
            raise ShapeError(
                f"hidden_size must be a multiple of num_heads, got {hidden_size} and {num_heads}; or pass head_dim"
            )
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim or hidden_size // num_heads
        self.dropout = dropout
        rows = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.query_key_value = Linear(hidden_size, rows, bias=bias)
        self.output = Linear(num_heads * self.head_dim, hidden_size, bias=bias if output_bias is None else output_bias)
        self.query_norm = qk_norm(self.head_dim) if qk_norm else None
        self.key_norm = qk_norm(self.head_dim) if qk_norm else None

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | CrossAttentionCache | None = ...,
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
        memory: Tensor | CrossAttentionCache | None = ...,
        *,
        mask: Mask = ...,
        rotation: Rotation | None = ...,
        cache: LayerCache | None = ...,
        return_matrix: Literal[True],
    ) -> tuple[Tensor, AttentionMatrix]: ...
    def forward(
        self,
        x: Tensor,
        memory: Tensor | CrossAttentionCache | None = None,
        *,
        mask: Mask = Full(),
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        return_matrix: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMatrix]:
        """Attend from x to itself and the KV cache, or to a memory.

        Args:
            x: Inputs (batch, queries, hidden_size).
            memory: For cross-attention, inputs (batch, keys, hidden_size) or what `project_memory` made of them.
            mask: Which keys each query attends to.
            rotation: Rotary position embedding of queries and keys.
            cache: KV cache of this layer, which is extended by the new keys and values.
            return_matrix: Whether to return the attention weights too.

        Returns:
            The output (batch, queries, hidden_size); with `return_matrix`, also the attention weights as an
            AttentionMatrix (batch, num_heads, queries, keys), which takes O(n) memory.

        Raises:
            ShapeError: Cross-attention is given a rotation or a cache.
        """
        if memory is None:
            query, key, value = self._project_self(x, rotation)
            if cache is not None:
                key, value = cache.extend(key, value)
        else:
            if rotation is not None or cache is not None:
                raise ShapeError("cross-attention takes no rotation and no cache; reuse project_memory(memory) instead")
            query = self._split_heads(self._project(x, 0, self.num_heads))
            query = query if self.query_norm is None else self.query_norm(query)
            key, value = memory if isinstance(memory, CrossAttentionCache) else self.project_memory(memory)
        heads = attend(query, key, value, mask=mask, dropout=self.dropout if self.training else 0.0)
        output = self.output(heads.transpose(1, 2).flatten(2))
        if return_matrix:
            return output, AttentionMatrix(query, key, mask=mask, value=value)
        return output

    def project_memory(self, memory: Tensor) -> CrossAttentionCache:
        """Project a memory (batch, keys, hidden_size) to keys and values once, for many calls of forward.

        Args:
            memory: Hidden states (batch, keys, hidden_size).

        Returns:
            Keys and values, which `forward` accepts as memory.
        """
        key, value = self._split_heads(self._project(memory, self.num_heads, 2 * self.num_kv_heads)).chunk(2, dim=1)
        return CrossAttentionCache(key if self.key_norm is None else self.key_norm(key), value)

    def _project_self(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x, normalized and rotated."""
        heads = self._split_heads(self.query_key_value(x))
        num_rotated = self.num_heads + self.num_kv_heads
        query_key, value = heads.narrow(1, 0, num_rotated), heads[:, num_rotated:]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query_key[:, : self.num_heads]), self.key_norm(query_key[:, self.num_heads :])
            query_key = torch.cat((query, key), dim=1)
        if rotation is not None:
            query_key = apply_rotation(query_key, rotation)  # both at once: in decoding, the number of calls counts
        return query_key[:, : self.num_heads], query_key[:, self.num_heads :], value

    def _project(self, x: Tensor, first_head: int, num_heads: int) -> Tensor:
        """Some heads of the fused projection."""
        rows = slice(first_head * self.head_dim, (first_head + num_heads) * self.head_dim)
        bias = self.query_key_value.bias
        return linear(x, self.query_key_value.weight[rows], None if bias is None else bias[rows])

    def _split_heads(self, x: Tensor) -> Tensor:
        """(batch, sequence, heads * head_dim) as (batch, heads, sequence, head_dim)."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """The position-wise network of a block: up projection, activation, down projection.

    Args:
        hidden_size: Size of inputs and outputs.
        intermediate_size: Size between the two projections.
        activation: Name of the activation.
        gated: Whether one half of the up projection, after the activation, multiplies the other half; gated "silu" is
            SwiGLU (arXiv:2002.05202).
        bias: Whether both projections have a bias.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "gelu",
        gated: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[activation], gated
        self.up = Linear(hidden_size, 2 * intermediate_size if gated else intermediate_size, bias=bias)
        self.down = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., hidden_size) to the same shape.

        Args:
            x: Hidden states (..., hidden_size).

        Returns:
            Hidden states of the same shape.
        """
        if not self.gated:
            return self.down(self.activation(self.up(x)))
        gate, x = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * x)


class Block(nn.Module):
    """A transformer block: attention, optional cross-attention and the feed-forward network, each with a residual.

    Args:
        attention: The self-attention.
        feed_forward: The feed-forward network.
        norm: Makes a norm; called once per sublayer.
        norm_first: Whether the norm comes before each sublayer (pre-norm: GPT-2, Llama) or after each residual sum
            (post-norm: the original Transformer, BERT).
        cross_attention: The cross-attention of a decoder block, if any.
        dropout: Dropout probability of each sublayer's output in training.
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        norm: Callable[[], nn.Module],
        norm_first: bool = True,
        cross_attention: MultiHeadAttention | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention, self.attention_norm = attention, norm()
        self.cross_attention, self.cross_norm = cross_attention, norm() if cross_attention else None
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        memory: Tensor | CrossAttentionCache | None = None,
        *,
        mask: Mask = Full(),
        memory_mask: Mask = Full(),
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Map x (batch, sequence, hidden_size) to the same shape; see `MultiHeadAttention.forward` for the arguments.

        `memory_mask` is the mask of the cross-attention.

        Args:
            x: Hidden states (batch, sequence, hidden_size).
            memory: What cross-attention attends to, if the block has it.
            mask: The mask of self-attention.
            memory_mask: The mask of cross-attention.
            rotation: Rotary position embedding of queries and keys.
            cache: KV cache of this layer.

        Returns:
            Hidden states of the same shape.

        Raises:
            ShapeError: The block has cross-attention, and there is no memory.
        """
        attention = partial(self.attention, mask=mask, rotation=rotation, cache=cache)
        x = self._add_residual(x, self.attention_norm, attention)
        if self.cross_attention is not None and self.cross_norm is not None:
            if memory is None:
                raise ShapeError("this block has cross-attention: expected a memory, got None")
            x = self._add_residual(x, self.cross_norm, partial(self.cross_attention, memory=memory, mask=memory_mask))
        return self._add_residual(x, self.feed_forward_norm, self.feed_forward)

    def _add_residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        change = sublayer(norm(x) if self.norm_first else x)
        x = x + F.dropout(change, self.dropout) if self.training else x + change
        return x if self.norm_first else norm(x)
