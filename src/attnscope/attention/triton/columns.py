"""The column pass: sums and maxima of weights over queries, given lse, and products with the transposed weights.

A program reads one block of keys and the queries of one bin of rows. Weights are 2^(score - lse), both in base 2.
"""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.tiles import LOG2_E, load_rows, modify_scores

SMALL_ROWS = tl.constexpr(8)  # rows of a tile that one thread does not share with its neighbours


@triton.jit
def _row_bounds(FIRST, LAST, FULL_FIRST, FULL_LAST, at, top, bottom, M: tl.constexpr):
    """Return the first row of [top, bottom) with a key in this block, the bounds of the whole tiles of rows that
    attend to all of it, and the end of its rows.
    """
    first = tl.maximum(tl.load(FIRST + at), top)
    last = tl.minimum(tl.load(LAST + at), bottom)
    full_first = tl.maximum(tl.load(FULL_FIRST + at), first)
    num_full = tl.maximum(tl.minimum(tl.load(FULL_LAST + at), last) - full_first, 0) // M
    full_first = tl.where(num_full > 0, full_first, first)
    return first, full_first, full_first + num_full * M, last


@triton.jit
def _allowed(START, STOP, rows, columns, inside):
    """Return which of these rows attend to which of these columns; their shapes broadcast."""
    start = tl.load(START + rows, mask=inside, other=0)
    stop = tl.load(STOP + rows, mask=inside, other=0)
    return (columns >= start) & (columns < stop)


@triton.jit
def _tile_weights(
    k, columns, queries, mask, scores, top, limit,
    FULL: tl.constexpr, M: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights (M, keys) of rows [top, top + M) before `limit`."""
    q_base, stride_q, head_dim, lse_base = queries
    START, STOP, slope_offset = mask
    scale, cap, slope = scores
    rows = top + tl.arange(0, M)
    inside = rows < limit
    q = load_rows(q_base, top, M, stride_q, head_dim, limit, D, EVEN_D, FULL)
    products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    distance = (rows + slope_offset)[:, None] - columns[None, :]
    s = modify_scores(products, distance, scale, cap, slope, SOFTCAP, ALIBI)
    if FULL:
        w = tl.exp2(s - tl.load(lse_base + rows)[:, None])
    else:
        lse = tl.load(lse_base + rows, mask=inside, other=0.0)
        allowed = _allowed(START, STOP, rows[:, None], columns[None, :], inside[:, None])
        w = tl.where(allowed, tl.exp2(s - lse[:, None]), 0.0)
    return w


@triton.jit
def column_kernel(
    Q, K, LSE, START, STOP, SLOPES, LEFT, RIGHT, FIRST, LAST, FULL_FIRST, FULL_LAST, EDGES, SUMS, MAXIMA,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask, stride_bounds, stride_bin,
    num_heads, group, num_queries, head_dim, slope_offset, first_column, scale, cap,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, EACH_COLUMN: tl.constexpr, MAXIMUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the sum, and if asked the maximum, of each column or of all columns of a block, over one bin of rows."""
    block, bin_, line = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    left, right = tl.load(LEFT + block), tl.load(RIGHT + block)
    columns = left + tl.arange(0, N)
    inside = columns < right
    k_base = K + batch * stride_kb + head // group * stride_kh
    k = load_rows(k_base, left, N, stride_kn, head_dim, right, D, EVEN_D, False)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    queries = Q + batch * stride_qb + head * stride_qh, stride_qm, head_dim, LSE + line * num_queries
    mask = START + batch * stride_mask, STOP + batch * stride_mask, slope_offset
    scores = scale, cap, slope
    at, top, bottom = batch * stride_bounds + block, tl.load(EDGES + bin_), tl.load(EDGES + bin_ + 1)
    bounds = _row_bounds(FIRST, LAST, FULL_FIRST, FULL_LAST, at, top, bottom, M)
    sums = tl.zeros([M // (2 * SMALL_ROWS), SMALL_ROWS, N], tl.float32)
    largest = sums
    for part in tl.static_range(3):
        for above in range(bounds[part], bounds[part + 1], M):
            w = _tile_weights(
                k, columns, queries, mask, scores, above, bounds[part + 1],
                part == 1, M, D, EVEN_D, SOFTCAP, ALIBI, PRECISION,
            )  # fmt: skip
            pairs = tl.reshape(w, (M // (2 * SMALL_ROWS), 2, SMALL_ROWS, N))
            sums += tl.sum(pairs, 1)
            if MAXIMUM:
                largest = tl.maximum(largest, tl.max(pairs, 1))
    total = tl.where(inside, tl.sum(tl.sum(sums, 0), 0), 0.0)
    highest = tl.where(inside, tl.max(tl.max(largest, 0), 0), 0.0)
    bin_at = (line * tl.num_programs(1) + bin_) * stride_bin
    if EACH_COLUMN:
        tl.store(SUMS + bin_at + columns - first_column, total, mask=inside)
        if MAXIMUM:
            tl.store(MAXIMA + bin_at + columns - first_column, highest, mask=inside)
    else:
        tl.store(SUMS + bin_at + block, tl.sum(total))
        if MAXIMUM:
            tl.store(MAXIMA + bin_at + block, tl.max(highest))


@triton.jit
def product_kernel(
    Q, K, LSE, START, STOP, SLOPES, LEFT, RIGHT, FIRST, LAST, FULL_FIRST, FULL_LAST, VALUES, OUT,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vm, stride_mask,
    stride_bounds, num_heads, group, num_queries, num_keys, num_values, head_dim, slope_offset, scale, cap,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, C: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write weights^T @ values for one block of keys and C columns of the values, which are fp32."""
    block, line = tl.program_id(0), tl.program_id(2).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    left, right = tl.load(LEFT + block), tl.load(RIGHT + block)
    columns = left + tl.arange(0, N)
    inside = columns < right
    wide = tl.program_id(1) * C + tl.arange(0, C)
    k_base = K + batch * stride_kb + head // group * stride_kh
    k = load_rows(k_base, left, N, stride_kn, head_dim, right, D, EVEN_D, False)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    queries = Q + batch * stride_qb + head * stride_qh, stride_qm, head_dim, LSE + line * num_queries
    mask = START + batch * stride_mask, STOP + batch * stride_mask, slope_offset
    scores = scale, cap, slope
    v_base = VALUES + batch * stride_vb + head * stride_vh
    at = batch * stride_bounds + block
    bounds = _row_bounds(FIRST, LAST, FULL_FIRST, FULL_LAST, at, 0, num_queries, M)
    out = tl.zeros([N, C], tl.float32)
    for part in tl.static_range(3):
        for above in range(bounds[part], bounds[part + 1], M):
            w = _tile_weights(
                k, columns, queries, mask, scores, above, bounds[part + 1],
                part == 1, M, D, EVEN_D, SOFTCAP, ALIBI, PRECISION,
            )  # fmt: skip
            rows = (above + tl.arange(0, M)).to(tl.int64)
            here = (rows[:, None] < bounds[part + 1]) & (wide[None, :] < num_values)
            v = tl.load(v_base + rows[:, None] * stride_vm + wide[None, :], mask=here, other=0.0)
            out = tl.dot(tl.trans(w), v, out, input_precision=PRECISION)
    to = OUT + (line * num_keys + columns[:, None]) * num_values + wide[None, :]
    tl.store(to, out, mask=inside[:, None] & (wide[None, :] < num_values))
