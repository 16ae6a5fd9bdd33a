"""Which kernels attention really takes on this machine: seen in small calls, as they are carried out.

What a build of torch offers is one thing, what a call takes is another: a mask, grouped heads or a dtype may send it to
code that builds the matrix. In: nothing. Out: a line for each kind of call. Memory: some kB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.attention import Causal, Mask, Padding, attend, explain
from attnscope.attention import kernels as operators

BATCH, TOKENS, DIM, HEADS = 2, 48, 16, 4
DTYPES = (torch.float32, torch.bfloat16)
LENGTHS = [TOKENS, TOKENS // 2]
BUILT = "unfused"


class Kind(NamedTuple):
    """A kind of attention: our mask for it, what torch's own call is told, and sizes that differ from the usual."""

    name: str
    mask: Mask
    told: Callable[[torch.device], dict[str, Any]]
    key_heads: int = HEADS
    value_dim: int = DIM


KINDS = (
    Kind("causal", Causal(), lambda _: {"is_causal": True}),
    Kind("grouped-query", Causal(), lambda _: {"is_causal": True, "enable_gqa": True}, key_heads=2),
    Kind("value dim != key dim", Causal(), lambda _: {"is_causal": True}, value_dim=DIM // 2),
    Kind("padding", Padding(LENGTHS), lambda device: {"attn_mask": kept(device)}),
    Kind(
        "causal and padding",
        Causal() & Padding(LENGTHS),
        lambda device: {"attn_mask": kept(device) & torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=device).tril()},
    ),
)


class Seen(TorchDispatchMode):
    """The names of torch's operators, as they are carried out; what is made of others is seen as those."""

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
    """For each kind of attention and each device that is here: the kernel of torch's own call, and our backend."""
    accelerator = torch.accelerator.current_accelerator()
    difference = operators.SCHEMA_MISMATCH
    found = {"fused kernel": "available" if difference is None else f"not available: {difference}; streaming is used"}
    for device in [torch.device("cpu"), *([] if accelerator is None else [accelerator])]:
        for kind in KINDS:
            by_dtype = {str(dtype)[6:]: answers(kind, device, dtype) for dtype in DTYPES}
            told = {answer: [name for name, one in by_dtype.items() if one == answer] for answer in by_dtype.values()}
            found[f"{kind.name}, {device.type}"] = "; ".join(
                f"{answer} ({', '.join(names)})" for answer, names in told.items()
            )
    return found


def answers(kind: Kind, device: torch.device, dtype: torch.dtype) -> str:
    """What a call of torch and one of `attend` are carried out by."""
    query = torch.randn(BATCH, HEADS, TOKENS, DIM, device=device, dtype=dtype)
    key = torch.randn(BATCH, kind.key_heads, TOKENS, DIM, device=device, dtype=dtype)
    value = torch.randn(BATCH, kind.key_heads, TOKENS, kind.value_dim, device=device, dtype=dtype)
    theirs = kernel_of(lambda: F.scaled_dot_product_attention(query, key, value, **kind.told(device)))
    ours = kernel_of(lambda: attend(query, key, value, mask=kind.mask))
    backend = explain(query, key, value, mask=kind.mask).backend
    return f"torch {theirs}, attnscope {backend}" + (f" by {ours}" if ours != BUILT else "")


def kernel_of(call: Callable[[], Tensor]) -> str:
    """The fused kernel that a call was carried out by, in a word."""
    with torch.no_grad(), Seen() as seen:
        call()
    fused = [name for name in seen.names if name.startswith("_scaled_dot_product")]
    if not fused:
        return BUILT
    return fused[0].removeprefix("_scaled_dot_product_").partition("_attention")[0].replace("_", " ")


def kept(device: torch.device) -> Tensor:
    """The padding as torch's own call wants it: (batch, 1, 1, keys)."""
    positions = torch.arange(TOKENS, device=device)
    return (positions < torch.tensor(LENGTHS, device=device)[:, None])[:, None, None]
