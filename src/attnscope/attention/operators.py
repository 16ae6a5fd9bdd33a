"""The fused attention operators of torch that return the log-sum-exp of each row (lse), and what each of them takes.

A table by device, in order of preference. `find_operator` returns the first operator that takes a call; `kernels`
brings tensors into the form that it needs. An operator that is missing here has no lse (MPS), is not deterministic
(cuDNN), or needs a compiler (FlexAttention).

The operators are private and may change in any release of torch, so each has the schema that it was used with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

HALF = frozenset({torch.float16, torch.bfloat16})
AMPERE = (8, 0)  # compute capability


class Operator(NamedTuple):
    """What one operator takes and returns.

    All of them take O(n) memory and return lse in fp32, or in fp64 for fp64. Their backward takes the lse and output of
    whole rows, so a row may be computed in parts.
    """

    title: str
    schemas: tuple[str, ...]  # of the forward and, if it is called, the backward
    dtypes: frozenset[torch.dtype]
    max_head_dim: int | None = None
    alignment: int = 1  # bytes: head dim, strides and start of each tensor are multiples of it
    takes_bias: bool = True  # in the dtype of the query
    expands: bool = False  # takes one key head per head, and a bias of the shape of all scores
    lower_right: bool = False  # `is_causal` aligns to the lower right corner, and not to the upper left
    lse_rows: int = 1  # lse has a multiple of so many rows: +inf after the last one
    min_capability: tuple[tuple[torch.dtype, tuple[int, int]], ...] = ()  # of NVIDIA GPUs, for some dtypes


CPU_FLASH = Operator(
    title="flash attention for the CPU",
    schemas=(
        "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
        "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, "
        "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
        "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    ),
    dtypes=HALF | {torch.float32, torch.float64},
)
FLASH = Operator(
    title="flash attention",
    schemas=(
        "aten::_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
        "bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, "
        "Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, "
        "Tensor unused, Tensor debug_attn_mask)",
    ),
    dtypes=HALF,
    max_head_dim=256,
    alignment=16,
    takes_bias=False,
    lower_right=True,
    min_capability=((torch.float16, AMPERE), (torch.bfloat16, AMPERE)),
)
EFFICIENT = Operator(
    title="memory-efficient attention",
    schemas=(
        "aten::_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, "
        "bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, *, float? scale=None) -> (Tensor output, "
        "Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)",
        "aten::_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, "
        "Tensor value, Tensor attn_bias, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, "
        "float dropout_p, bool[4] grad_input_mask, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, "
        "Tensor, Tensor)",
    ),
    dtypes=HALF | {torch.float32},
    alignment=16,
    expands=True,
    lse_rows=32,
    min_capability=((torch.bfloat16, AMPERE),),
)
OPERATORS = {
    "cpu": (CPU_FLASH,),
    "cuda": (FLASH, EFFICIENT),
    "rocm": (FLASH, EFFICIENT._replace(lse_rows=1)),
}
"""By platform; the last operator of each also has a backward, and takes every call that the others take."""


def platform_of(device: torch.device) -> str:
    """Return the type of a device, where "rocm" is one of AMD, which torch calls "cuda"."""
    return "rocm" if device.type == "cuda" and torch.version.hip is not None else device.type


def find_operator(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, has_bias: bool = False, off_corner: bool = False
) -> Operator | None:
    """Return the first operator that takes such a call.

    Args:
        device: The device of all tensors.
        dtype: The dtype of all tensors.
        head_dim: The head dim of query, key and value.
        has_bias: Whether something is added to the scores.
        off_corner: Whether the call is causal, and the upper left corner is not on the diagonal of the lower right.
    """
    for operator in OPERATORS.get(platform_of(device), ()):
        fits = head_dim <= (operator.max_head_dim or head_dim) and not (has_bias and not operator.takes_bias)
        fits = fits and (operator is not FLASH or _has_flash())
        if fits and not (off_corner and operator.lower_right) and why_not_dtype(operator, device, dtype) is None:
            return operator
    return None


def _has_flash() -> bool:
    """Whether this build of torch has flash attention; some leave it out."""
    return not torch.cuda.is_available() or torch.backends.cuda.is_flash_attention_available()


def why_not_dtype(operator: Operator, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why an operator does not take a dtype on a device; None if it does."""
    if dtype not in operator.dtypes:
        return f"{operator.title} does not support {str(dtype)[6:]} on {device.type}"
    needed = dict(operator.min_capability).get(dtype)
    if needed is None or torch.version.cuda is None or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_capability(device)
    if found >= needed:
        return None
    return (
        f"{operator.title} of {str(dtype)[6:]} needs a GPU of compute capability {needed[0]}.{needed[1]}, "
        f"{device} has {found[0]}.{found[1]}"
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


# Constants, because torch.compile reads them while it traces `attend`; a cached function would break its graph.
SCHEMA_MISMATCHES = {
    platform: find_schema_mismatch(*(schema for operator in operators for schema in operator.schemas))
    for platform, operators in OPERATORS.items()
}
"""By platform, why the operators of the installed torch cannot be called; None if they can."""
