"""Which attention kernels torch uses on this machine, observed in small calls.

A build of torch may offer a fused kernel that a given call does not use: a mask, grouped heads or a dtype may select
code that stores the full matrix. In: nothing. Out: one line per kind of call. Memory: a few kB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.attention import Causal, Mask, Padding, attend, explain, operators
from attnscope.contracts import find_devices

BATCH, TOKENS, DIM, HEADS = 2, 48, 16, 4
DTYPES = (torch.float32, torch.bfloat16)
LENGTHS = [TOKENS, TOKENS // 2]
UNFUSED = "unfused"


class Kind(NamedTuple):
    """A kind of attention: AttnScope's mask, the arguments of torch's function, and sizes that differ."""

    name: str
    mask: Mask
    sdpa_arguments: Callable[[torch.device], dict[str, Any]]
    key_heads: int = HEADS
    value_dim: int = DIM


KINDS = (
    Kind("causal", Causal(), lambda _: {"is_causal": True}),
    Kind("grouped-query", Causal(), lambda _: {"is_causal": True, "enable_gqa": True}, key_heads=2),
    Kind("value dim != key dim", Causal(), lambda _: {"is_causal": True}, value_dim=DIM // 2),
    Kind("padding", Padding(LENGTHS), lambda device: {"attn_mask": padding_mask(device)}),
    Kind(
        "causal and padding",
        Causal() & Padding(LENGTHS),
        lambda device: {
            "attn_mask": padding_mask(device) & torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=device).tril()
        },
    ),
)


class OperatorLog(TorchDispatchMode):
    """Records the names of torch operators as they run; composite operators appear as their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first call loads torch's compiler, which takes longer than all the rest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def kernels() -> dict[str, str]:
    """Return the kernel of torch and the backend of `attend`, by kind of attention and device."""
    devices = find_devices()[:2]  # the CPU and the first accelerator
    differences = [operators.SCHEMA_MISMATCHES.get(operators.platform_of(device)) for device in devices]
    difference = next((one for one in differences if one is not None), None)
    found = {"fused kernel": "available" if difference is None else f"not available: {difference}; streaming is used"}
    for device in devices:
        for kind in KINDS:
            by_dtype = {str(dtype)[6:]: describe_call(kind, device, dtype) for dtype in DTYPES}
            dtypes = {text: [name for name, one in by_dtype.items() if one == text] for text in by_dtype.values()}
            found[f"{kind.name}, {device.type}"] = "; ".join(
                f"{text} ({', '.join(names)})" for text, names in dtypes.items()
            )
    return found


def describe_call(kind: Kind, device: torch.device, dtype: torch.dtype) -> str:
    """Name the kernel that torch uses for a call, and the backend and kernel of `attend`."""
    query = torch.randn(BATCH, HEADS, TOKENS, DIM, device=device, dtype=dtype)
    key = torch.randn(BATCH, kind.key_heads, TOKENS, DIM, device=device, dtype=dtype)
    value = torch.randn(BATCH, kind.key_heads, TOKENS, kind.value_dim, device=device, dtype=dtype)
    theirs = find_kernel(lambda: F.scaled_dot_product_attention(query, key, value, **kind.sdpa_arguments(device)))
    ours = find_kernel(lambda: attend(query, key, value, mask=kind.mask))
    backend = explain(query, key, value, mask=kind.mask).backend
    return f"torch {theirs}, attnscope {backend}" + (f" by {ours}" if ours != UNFUSED else "")


def find_kernel(call: Callable[[], Tensor]) -> str:
    """Return the short name of the fused kernel that a call uses."""
    with torch.no_grad(), OperatorLog() as log:
        call()
    fused = [name for name in log.names if name.startswith("_scaled_dot_product")]
    if not fused:
        return UNFUSED
    return fused[0].removeprefix("_scaled_dot_product_").partition("_attention")[0].replace("_", " ")


def padding_mask(device: torch.device) -> Tensor:
    """Return the padding mask for torch's function, (batch, 1, 1, keys)."""
    positions = torch.arange(TOKENS, device=device)
    return (positions < torch.tensor(LENGTHS, device=device)[:, None])[:, None, None]
