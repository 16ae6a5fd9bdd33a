"""The private torch operators behind the fused backend; no other file calls them.

`flash_attention` and `flash_attention_backward` are the fused attention of the CPU with its log-sum-exp per row (lse).
They take O(n) memory, grouped key heads, and an additive mask in the dtype of the query; `is_causal` aligns to the
upper left corner. The backward takes the lse and output of the *whole* row, so a row may be computed in parts. The lse
of a row without keys is 0.0, and the lse has no gradient.

Private operators may change in any release. Their schemas are compared with the expected ones once, when this module
is imported. If they differ, `attend` uses the streaming backend and the plan gives the reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORWARD_SCHEMA = (
    "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
    "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
)
BACKWARD_SCHEMA = (
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, "
    "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"
)


def find_schema_mismatch(*schemas: str) -> str | None:
    """Describe the first operator that this torch lacks or declares differently; None if all are as expected."""
    for expected in schemas:
        name = expected.removeprefix("aten::").partition("(")[0]
        operator = getattr(torch.ops.aten, name, None)
        found = None if operator is None else str(operator.default._schema)
        if found != expected:
            what = "does not have" if found is None else "has another signature for"
            return f"torch {torch.__version__} {what} the operator aten::{name} that the fused kernel calls"
    return None


def is_functorch_active() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is active; the private operators do not support them."""
    return torch._C._are_functorch_transforms_active()


# A constant, because torch.compile reads it while it traces `attend`; a cached function would break its graph.
SCHEMA_MISMATCH = find_schema_mismatch(FORWARD_SCHEMA, BACKWARD_SCHEMA)
"""Why the operators of the installed torch cannot be called; None if they can."""


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float, attn_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return output and lse of one fused call; query (batch, heads, queries, dim), key and value of the same dim."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )


def flash_attention_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
    scale: float,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value from some of the keys, given output and lse over all of them."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_output, query, key, value, output, lse, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
