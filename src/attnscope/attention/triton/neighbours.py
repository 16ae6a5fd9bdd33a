"""Weights of single cells of each row, given lse: the largest, and those of keys near the query. O(n) cells."""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.rows import LANES
from attnscope.attention.triton.tiles import LOG2_E, gather_rows, load_rows, modify_scores


@triton.jit
def largest_key_kernel(
    Q, K, START, STOP, SLOPES, CANDIDATES, FOUND,
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
    best = tl.full([M], float("-inf"), tl.float32)
    found = tl.full([M], -1, tl.int32)
    for step in range(NUM_CANDIDATES):
        columns = first + step * LANES
        seen = (columns >= start) & (columns < stop)
        distance = rows + slope_offset - columns
        k = gather_rows(k_base, columns, stride_kn, head_dim, seen, D, EVEN_D)
        products = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)
        s = modify_scores(products, distance, scale, cap, slope, SOFTCAP, ALIBI)
        better = seen & (s > best)
        best = tl.where(better, s, best)
        found = tl.where(better, columns, found)
    tl.store(FOUND + line * num_queries + rows, found, mask=inside)


@triton.jit
def _tile_weights(
    q, keys, rows, mask, scores, left, limit,
    N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights (rows, N) of keys [left, left + N) before `limit`.

    The row pass computes lse from the same product of tiles of the same shape, so that the rounding errors of a score
    are in both and cancel.
    """
    k_base, stride_k, head_dim = keys
    start, stop, slope_offset, lse = mask
    scale, cap, slope = scores
    columns = left + tl.arange(0, N)
    k = load_rows(k_base, left, N, stride_k, head_dim, limit, D, EVEN_D, False)
    products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    distance = (rows + slope_offset)[:, None] - columns[None, :]
    s = modify_scores(products, distance, scale, cap, slope, SOFTCAP, ALIBI)
    allowed = (columns[None, :] >= start[:, None]) & (columns[None, :] < tl.minimum(stop, limit)[:, None])
    return tl.where(allowed, tl.exp2(s - lse[:, None]), 0.0)


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
    block = tl.program_id(0)
    rows = block * M + tl.arange(0, M)
    inside = rows < num_queries
    q_base = Q + batch * stride_qb + head * stride_qh
    q = load_rows(q_base, block * M, M, stride_qm, head_dim, num_queries, D, EVEN_D, False)
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    lse = tl.load(LSE + line * num_queries + rows, mask=inside, other=0.0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    keys = K + batch * stride_kb + head // group * stride_kh, stride_kn, head_dim
    mask = start, stop, slope_offset, lse
    scores = scale, cap, slope
    ramp = tl.arange(0, N)[None, :]
    w = _tile_weights(
        q, keys, rows, mask, scores, 0, tl.minimum(num_keys, 1), N, D, EVEN_D, SOFTCAP, ALIBI, PRECISION
    )  # fmt: skip
    first_weight = tl.sum(w, 1)
    local, same, previous = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    first_position = block * M + offset
    for left in range(tl.maximum(first_position - reach, 0), tl.minimum(first_position + M + reach, num_keys), N):
        w = _tile_weights(
            q, keys, rows, mask, scores, left, num_keys, N, D, EVEN_D, SOFTCAP, ALIBI, PRECISION
        )  # fmt: skip
        distance = (rows + offset)[:, None] - left - ramp
        local += tl.sum(tl.where(tl.abs(distance) <= reach, w, 0.0), 1)
        same += tl.sum(tl.where(distance == 0, w, 0.0), 1)
        previous += tl.sum(tl.where(distance == 1, w, 0.0), 1)
    out, plane = OUT + line * num_queries + rows, tl.num_programs(1).to(tl.int64) * num_queries
    tl.store(out, local, mask=inside)
    tl.store(out + plane, same, mask=inside)
    tl.store(out + 2 * plane, previous, mask=inside)
    tl.store(out + 3 * plane, first_weight, mask=inside)
