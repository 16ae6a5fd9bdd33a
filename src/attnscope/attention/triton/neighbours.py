"""Weights of single cells of each row, given lse: the largest, and those of keys near the query. O(n) cells."""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.rows import LANES
from attnscope.attention.triton.tiles import LOG2_E, gather_rows, modify_scores


@triton.jit
def _pair_scores(
    q, k_base, columns, seen, stride_k, head_dim, distance, scores,
    D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
):  # fmt: skip
    """Return the score of each query with the key of its own column."""
    scale, cap, slope = scores
    k = gather_rows(k_base, columns, stride_k, head_dim, seen, D, EVEN_D)
    products = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)
    return modify_scores(products, distance, scale, cap, slope, SOFTCAP, ALIBI)


@triton.jit
def largest_key_kernel(
    Q, K, START, STOP, SLOPES, CANDIDATES, OUT,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask,
    num_heads, group, num_queries, head_dim, slope_offset, scale, cap,
    M: tl.constexpr, NUM_CANDIDATES: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
):  # fmt: skip
    """Write the key with the largest logit, among those in steps of LANES from a candidate; -1 without keys."""
    line = tl.program_id(1).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inside = rows < num_queries
    q_base = Q + batch * stride_qb + head * stride_qh
    q = gather_rows(q_base, rows, stride_qm, head_dim, inside, D, EVEN_D)
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    first = tl.load(CANDIDATES + line * num_queries + rows, mask=inside, other=0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    k_base = K + batch * stride_kb + head // group * stride_kh
    scores = scale, cap, slope
    best = tl.full([M], float("-inf"), tl.float32)
    found = tl.full([M], -1, tl.int32)
    for step in range(NUM_CANDIDATES):
        columns = first + step * LANES
        seen = (columns >= start) & (columns < stop)
        distance = rows + slope_offset - columns
        s = _pair_scores(
            q, k_base, columns, seen, stride_kn, head_dim, distance, scores, D, EVEN_D, SOFTCAP, ALIBI
        )  # fmt: skip
        better = seen & (s > best)
        best = tl.where(better, s, best)
        found = tl.where(better, columns, found)
    tl.store(OUT + line * num_queries + rows, found, mask=inside)


@triton.jit
def neighbour_kernel(
    Q, K, LSE, START, STOP, SLOPES, OUT,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask,
    num_heads, group, num_queries, num_keys, head_dim, offset, slope_offset, scale, cap, reach,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the weight on the query's position, the one before it, the first key, and all within `reach` tokens."""
    line = tl.program_id(1).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inside = rows < num_queries
    q_base = Q + batch * stride_qb + head * stride_qh
    q = gather_rows(q_base, rows, stride_qm, head_dim, inside, D, EVEN_D)
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    lse = tl.load(LSE + line * num_queries + rows, mask=inside, other=0.0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    k_base = K + batch * stride_kb + head // group * stride_kh
    scores = scale, cap, slope
    zeros = tl.zeros([M], tl.int32)
    seen = (start <= 0) & (stop > 0)
    s = _pair_scores(
        q, k_base, zeros, seen, stride_kn, head_dim, rows + slope_offset, scores, D, EVEN_D, SOFTCAP, ALIBI
    )  # fmt: skip
    first_weight = tl.where(seen, tl.exp2(s - lse), 0.0)
    local, same, previous = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    first_position = tl.program_id(0) * M + offset
    for left in range(tl.maximum(first_position - reach, 0), tl.minimum(first_position + M + reach, num_keys), N):
        columns = left + tl.arange(0, N)
        k = gather_rows(k_base, columns, stride_kn, head_dim, columns < num_keys, D, EVEN_D)
        products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        s = modify_scores(
            products, (rows + slope_offset)[:, None] - columns[None, :], scale, cap, slope, SOFTCAP, ALIBI
        )  # fmt: skip
        allowed = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
        w = tl.where(allowed, tl.exp2(s - lse[:, None]), 0.0)
        distance = (rows + offset)[:, None] - columns[None, :]
        local += tl.sum(tl.where(tl.abs(distance) <= reach, w, 0.0), 1)
        same += tl.sum(tl.where(distance == 0, w, 0.0), 1)
        previous += tl.sum(tl.where(distance == 1, w, 0.0), 1)
    out, plane = OUT + line * num_queries + rows, tl.num_programs(1).to(tl.int64) * num_queries
    tl.store(out, local, mask=inside)
    tl.store(out + plane, same, mask=inside)
    tl.store(out + 2 * plane, previous, mask=inside)
    tl.store(out + 3 * plane, first_weight, mask=inside)
