"""Implement a transformer block

Write `block(x, p, heads)`: a causal pre-norm block. `x` is (batch, n, d); `p` is a dict of tensors. Return (batch, n,
d).

1. Normalise x with layer norm: `p["gain_1"]` and `p["shift_1"]`, (d,), and an epsilon of 1e-5.
2. Causal multi-head self-attention of the result. `p["w_q"]`, `p["w_k"]`, `p["w_v"]` and `p["w_o"]` are (d, d), applied
   as `y @ w`. Head 0 has the first d / heads columns of queries, keys and values, head 1 the next. Scores are divided
   by the square root of d / heads. The outputs of the heads are concatenated and multiplied by `w_o`.
3. Add this to x (before its norm).
4. Normalise the sum with `p["gain_2"]` and `p["shift_2"]`; then the feed-forward network: `w_1` (d, f) and `b_1`, GELU
   (the exact one, `torch.nn.functional.gelu`), `w_2` (f, d) and `b_2`. Add this to the sum of step 3.

Functions of torch are allowed, modules are not needed.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_tensor,
    first_mismatch,
    format_index,
    reject_known,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def block(x: Tensor, p: dict[str, Tensor], heads: int) -> Tensor:
    """Return (batch, n, d): x after attention and the feed-forward network."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor
from torch.nn import functional as F


def attention(y: Tensor, p: dict[str, Tensor], heads: int) -> Tensor:
    batch, n, d = y.shape
    q, k, v = ((y @ p[name]).view(batch, n, heads, -1).transpose(1, 2) for name in ("w_q", "w_k", "w_v"))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, n, d) @ p["w_o"]


def block(x: Tensor, p: dict[str, Tensor], heads: int) -> Tensor:
    x = x + attention(F.layer_norm(x, x.shape[-1:], p["gain_1"], p["shift_1"]), p, heads)
    hidden = F.layer_norm(x, x.shape[-1:], p["gain_2"], p["shift_2"]) @ p["w_1"] + p["b_1"]
    return x + F.gelu(hidden) @ p["w_2"] + p["b_2"]
"""

HINTS = (
    "Write the block as two lines first: x plus something, then x plus something else. What goes into each something "
    "is normalised, what it is added to is not.",
    "Splitting (batch, n, d) into heads is a `view` to (batch, n, heads, d / heads) and a `transpose`. The way back "
    "is the transpose first.",
    "Test it with parts switched off: if `w_o` is 0, attention adds nothing; if `w_2` and `b_2` are 0, neither does "
    "the feed-forward network. With both, what should come out?",
)

AFTERWARDS = "Stack it, with an embedding before and a norm and a linear layer after it: that is GPT-2."


def check(answer: Answer) -> None:
    """A block with all parts; mistakes are told apart by what else the result could be."""
    block = answer.function("block")
    for seed, (batch, n, d, heads) in enumerate(((1, 4, 8, 2), (2, 7, 12, 4), (3, 1, 6, 1))):
        x, p = standard_normal(batch, n, d, seed=100 * seed), _parameters(d, 100 * seed)
        found = expect_tensor(block(x, dict(p), heads), "What `block` returns", (batch, n, d))
        _compare(found, x, p, heads)


def _parameters(d: int, seed: int) -> dict[str, Tensor]:
    def drawn(place: int, *shape: int) -> Tensor:
        return standard_normal(*shape, seed=seed + place)

    p = {name: drawn(place, d, d) / d**0.5 for place, name in enumerate(("w_q", "w_k", "w_v", "w_o"), 1)}
    p |= {name: 1 + 0.3 * drawn(place, d) for place, name in enumerate(("gain_1", "gain_2"), 5)}
    p |= {name: 0.3 * drawn(place, d) for place, name in enumerate(("shift_1", "shift_2", "b_2"), 7)}
    return p | {"w_1": drawn(10, d, 4 * d) / d**0.5, "b_1": drawn(11, 4 * d), "w_2": drawn(12, 4 * d, d) / d**0.5}


def _attention(
    y: Tensor, p: dict[str, Tensor], heads: int, *, causal: bool = True, scale: float | None = None
) -> Tensor:
    q, k, v = ((y @ p[name]).unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("w_q", "w_k", "w_v"))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2).flatten(2) @ p["w_o"]


def _norm(x: Tensor, p: dict[str, Tensor], which: int) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"gain_{which}"], p[f"shift_{which}"])


def _ffn(y: Tensor, p: dict[str, Tensor], approximate: str = "none") -> Tensor:
    return F.gelu(y @ p["w_1"] + p["b_1"], approximate=approximate) @ p["w_2"] + p["b_2"]


def _compare(found: Tensor, x: Tensor, p: dict[str, Tensor], heads: int) -> None:
    first, d = _norm(x, p, 1), x.shape[-1]
    middle = x + _attention(first, p, heads)
    expected = middle + _ffn(_norm(middle, p, 2), p)
    if (place := first_mismatch(found, expected, 1e-4)) is None:
        return
    case = f"With x of shape {tuple(x.shape)} and {heads} heads"

    def finished(middle: Tensor) -> Tensor:
        return middle + _ffn(_norm(middle, p, 2), p)

    relu = middle + (_norm(middle, p, 2) @ p["w_1"] + p["b_1"]).relu() @ p["w_2"] + p["b_2"]
    post = _norm(x + _attention(x, p, heads), p, 1)
    reject_known(
        found,
        {
            "the future leaks": (
                finished(x + _attention(first, p, heads, causal=False)),
                f"{case}, every token attends to all tokens. Which keys may query i use?",
            ),
            "the first sum is missing": (finished(_attention(first, p, heads)), f"{case}, attention replaces x."),
            "the second sum is missing": (
                _ffn(_norm(middle, p, 2), p),
                f"{case}, the feed-forward network replaces its input instead of adding to it.",
            ),
            "the norm is added too": (
                finished(first + _attention(first, p, heads)),
                f"{case}, attention is added to the normalised x. Step 3 adds it to x itself.",
            ),
            "no first norm": (finished(x + _attention(x, p, heads)), f"{case}, attention reads x without its norm."),
            "no second norm": (
                middle + _ffn(middle, p),
                f"{case}, the feed-forward network reads the sum without a norm.",
            ),
            "post-norm": (
                _norm(post + _ffn(post, p), p, 2),
                f"{case}, this is a post-norm block, as in 2017: the sums are normalised, not the inputs.",
            ),
            "one head": (
                finished(x + _attention(first, p, 1)),
                f"{case}, all columns are one head. Where do your heads get their own scores?",
            ),
            "wrong scale": (
                finished(x + _attention(first, p, heads, scale=d**-0.5)),
                f"{case}, scores are divided by the square root of d. A query of one head has fewer components.",
            ),
            "not GELU": (relu, f"{case}, the activation is ReLU."),
            "parallel": (
                middle + _ffn(_norm(x, p, 2), p),
                f"{case}, the feed-forward network does not see what attention added.",
            ),
        },
    )
    raise WrongAnswer(
        "wrong output",
        f"{case}, entry {format_index(place)} is {float(found[place]):.4f}. Set `w_2` and `b_2` to 0 and compare "
        "attention alone, then `w_o` to 0 and the feed-forward network alone.",
    )
