"""The private torch operators that AttnScope stands on, reached in this file only.

`flash` and `flash_backward` are the CPU's fused attention with its row normalisers (lse): O(n) memory, is_causal
counted from the upper left corner, grouped key heads as they are, an additive mask of the query's dtype. The backward
takes the lse and output of the *whole* row, so that a row may be computed in pieces. Two facts callers must know: the
lse of a row without keys comes back as 0.0, and the lse carries no gradient.

Private operators may change in any release. Their schemas are compared with the ones this file was written for, once,
when this module is loaded. If they differ, `attend` uses the streaming engine and the plan gives the reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORWARD = (
    "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
    "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
)
BACKWARD = (
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, "
    "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"
)


def find_difference(*schemas: str) -> str | None:
    """The first operator that this torch lacks or declares differently, in a sentence; None if all are as expected."""
    for expected in schemas:
        name = expected.removeprefix("aten::").partition("(")[0]
        operator = getattr(torch.ops.aten, name, None)
        found = None if operator is None else str(operator.default._schema)
        if found != expected:
            what = "does not have" if found is None else "has another signature for"
            return f"torch {torch.__version__} {what} the operator aten::{name} that the fused kernel calls"
    return None


def is_transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is active; the private operators do not support them."""
    return torch._C._are_functorch_transforms_active()


# A constant, because torch.compile reads it while it traces `attend`; a cached function would break its graph.
DIFFERENCE = find_difference(FORWARD, BACKWARD)
"""Why the operators of the installed torch cannot be called; None if they can."""


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
