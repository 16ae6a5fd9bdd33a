"""The spread of distances: the standard deviation of query position - key position in each row, given lse and mean.

A second pass around the known mean has no cancellation: in fp32, the mean of squares minus the square of the mean would
be wrong by whole tokens for a query that attends to keys 8,192 tokens away.
"""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.rows import LANES
from attnscope.attention.triton.tiles import LOG2_E, load_rows, modify_scores


@triton.jit
def key_bounds(start, stop, inside, num_keys, N: tl.constexpr):
    """Return the first key of a block of rows, the bounds of the tiles that all of its rows attend to, and the end."""
    has_keys = inside & (stop > start)
    first = tl.min(tl.where(has_keys, start, num_keys))
    last = tl.max(tl.where(has_keys, stop, 0))
    low = tl.max(tl.where(inside, start, 0))
    num_whole = tl.maximum(tl.min(tl.where(inside, stop, num_keys)) - low, 0) // N
    low = tl.where(num_whole > 0, low, first)
    return first, low, low + num_whole * N, last


@triton.jit
def spread_kernel(
    Q, K, LSE, MEAN, START, STOP, SLOPES, OUT,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask,
    num_heads, group, num_queries, num_keys, head_dim, offset, slope_offset, scale, cap,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the standard deviation of the distance of M rows, 0 for rows without keys."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last rows of a causal mask have the most keys
    line = tl.program_id(1).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    rows = block * M + tl.arange(0, M)
    inside = rows < num_queries
    q_base = Q + batch * stride_qb + head * stride_qh
    q = load_rows(q_base, block * M, M, stride_qm, head_dim, num_queries, D, EVEN_D, False)
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    lse = tl.load(LSE + line * num_queries + rows, mask=inside, other=0.0)
    mean = tl.load(MEAN + line * num_queries + rows, mask=inside, other=0.0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    k_base = K + batch * stride_kb + head // group * stride_kh
    mass, squares = tl.zeros([M, LANES], tl.float32), tl.zeros([M, LANES], tl.float32)
    bounds = key_bounds(start, stop, inside, num_keys, N)
    for part in tl.static_range(3):
        for left in range(bounds[part], bounds[part + 1], N):
            columns = left + tl.arange(0, N)
            k = load_rows(k_base, left, N, stride_kn, head_dim, bounds[part + 1], D, EVEN_D, part == 1)
            products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            slope_distance = (rows + slope_offset)[:, None] - columns[None, :]
            s = modify_scores(products, slope_distance, scale, cap, slope, SOFTCAP, ALIBI)
            w = tl.exp2(s - lse[:, None])
            if part != 1:
                limit = tl.minimum(stop, bounds[part + 1])
                w = tl.where((columns[None, :] >= start[:, None]) & (columns[None, :] < limit[:, None]), w, 0.0)
            away = ((rows + offset)[:, None] - columns[None, :]).to(tl.float32) - mean[:, None]
            mass += tl.sum(tl.reshape(w, (M, N // LANES, LANES)), 1)
            squares += tl.sum(tl.reshape(w * away * away, (M, N // LANES, LANES)), 1)
    total = tl.sum(mass, 1)
    variance = tl.sum(squares, 1) / tl.where(total > 0, total, 1.0)
    tl.store(OUT + line * num_queries + rows, tl.sqrt(variance), mask=inside)
