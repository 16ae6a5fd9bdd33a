"""Parts of all kernels: loading queries and keys, and the scores of a tile in base 2.

A kernel works on tiles of BLOCK_M queries x BLOCK_N keys. Scores and lse are multiplied by log2(e), so that a weight
is one `exp2`. Offsets into query and key are 64-bit: a million tokens of many heads exceed 32 bits.
"""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)  # below every score; unlike -inf, its differences and products with 0 are not NaN


@triton.jit
def load_rows(
    base, first, size: tl.constexpr, stride, head_dim, limit,
    D: tl.constexpr, EVEN_D: tl.constexpr, EVEN_ROWS: tl.constexpr,
):  # fmt: skip
    """Load `size` rows of queries or keys from row `first` on as (size, D); what lies outside is 0."""
    ramp, dims = tl.arange(0, size), tl.arange(0, D)
    at = base + tl.cast(first, tl.int64) * stride + (ramp[:, None].to(tl.int64) * stride + dims[None, :])
    if EVEN_D and EVEN_ROWS:
        return tl.load(at)
    if EVEN_D:
        return tl.load(at, mask=(first + ramp < limit)[:, None], other=0.0)
    if EVEN_ROWS:
        return tl.load(at, mask=dims[None, :] < head_dim, other=0.0)
    return tl.load(at, mask=(first + ramp < limit)[:, None] & (dims[None, :] < head_dim), other=0.0)


@triton.jit
def gather_rows(base, rows, stride, head_dim, inside, D: tl.constexpr, EVEN_D: tl.constexpr):
    """Load these rows of queries or keys as (rows, D); 0 where a row is not `inside`."""
    dims = tl.arange(0, D)
    mask = inside[:, None] if EVEN_D else inside[:, None] & (dims[None, :] < head_dim)
    return tl.load(base + rows[:, None].to(tl.int64) * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, to a few roundings also near 0."""
    square = x * x
    small = x + x * square * (-0.33332959 + square * (0.13320941 + square * (-0.05268411 + square * 0.016458703)))
    far = 1.0 - 2.0 / (1.0 + tl.exp2(tl.abs(x) * 2.8853900817779268))
    return tl.where(tl.abs(x) < 0.55, small, tl.where(x < 0, -far, far))


@triton.jit
def modify_scores(products, distance, scale, cap, slope, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Return scores in base 2 of products q.k; `distance` is the query position minus the key position."""
    scores = tanh(products * scale) * cap if SOFTCAP else products * scale
    if ALIBI:
        scores -= slope * tl.abs(distance).to(tl.float32)
    return scores
