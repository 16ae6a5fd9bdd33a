"""The private torch operators that AttnScope stands on, reached in this file only.

`flash` and `flash_backward` are the CPU's fused attention with its row normalisers (lse): O(n) memory, is_causal
counted from the upper left corner, grouped key heads as they are, an additive mask of the query's dtype. The backward
takes the lse and output of the *whole* row, so that a row may be computed in pieces. Two facts callers must know: the
lse of a row without keys comes back as 0.0, and the lse carries no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

SUPPORTED_TORCH = ((2, 13), (2, 14))  # from, below: the schemas are checked by a test for each release in this range


def _check_torch() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    low, high = SUPPORTED_TORCH
    if not low <= version < high:
        wanted = f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"
        raise ImportError(
            f"attnscope uses operators whose form is known for torch {wanted}; this is torch {torch.__version__}. "
            f'Install one of those: pip install "torch{wanted}"'
        )


_check_torch()


def flash(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and lse of one fused call; query (batch, heads, queries, dim), key and value of the same dim."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )


def flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value from a part of the keys, given output and lse over all of them."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
