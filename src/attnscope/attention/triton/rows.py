"""The row pass: lse, entropy and other statistics of each query in one pass over its keys.

For each row, with scores s in base 2 and their maximum m, the kernel sums over keys

    total = sum 2^(s-m) >= 1,    tilt = sum (s-m) 2^(s-m) <= 0,

so entropy = log2(total) - tilt / total in bits, a sum of two terms >= 0 without cancellation. When m rises by r, total
and tilt are multiplied by 2^-r, and tilt also loses r * total. Sums run over the keys j, j + LANES, j + 2 LANES ...
separately and are added at the end, so that a tile needs no exchange between threads except for the maximum.
"""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.tiles import LN_2, LOG2_E, LOWEST, load_rows, modify_scores

LANES = tl.constexpr(8)
BEFORE, AFTER = tl.constexpr(1), tl.constexpr(3)  # parts between the bounds of tiles; the even parts are masked
NO_COLUMN = tl.constexpr(2**31 - 1)


@triton.jit
def _sum_lanes(values, M: tl.constexpr, N: tl.constexpr):
    """Sum (M, N) over columns with the same remainder by LANES, to (M, LANES)."""
    return tl.sum(tl.reshape(values, (M, N // LANES, LANES)), 1)


@triton.jit
def _add_distances(
    p, here, fade, left, columns, positions, before, after,
    PART: tl.constexpr, ONLY_BEFORE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add weight * distance in two parts of one sign: to an edge of the tile, and from there to the key."""
    steps = ((tl.arange(0, N) // LANES) * LANES).to(tl.float32)
    lane = tl.arange(0, LANES).to(tl.float32)
    if PART == BEFORE:
        edge = (positions - (left + N - 1)).to(tl.float32)[:, None] + (-lane + (LANES - 1))[None, :]
        before = fade * before + edge * here + _sum_lanes(p * (-steps + (N - LANES))[None, :], M, N)
        if not ONLY_BEFORE:
            after = fade * after
    elif PART == AFTER:
        edge = (left - positions).to(tl.float32)[:, None] + lane[None, :]
        before = fade * before
        after = fade * after + edge * here + _sum_lanes(p * steps[None, :], M, N)
    else:
        distance = (positions[:, None] - columns[None, :]).to(tl.float32)
        before = fade * before + _sum_lanes(p * tl.maximum(distance, 0.0), M, N)
        if not ONLY_BEFORE:
            after = fade * after + _sum_lanes(p * tl.maximum(-distance, 0.0), M, N)
    return before, after


@triton.jit
def _add_tile(
    q, keys, mask, scores, sums, left, limit,
    PART: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, POSITIVE_SCALE: tl.constexpr, CHOSEN: tl.constexpr,
    ONLY_BEFORE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys [left, left + N) before `limit` to the sums of M rows.

    In the parts BEFORE and AFTER, all rows attend to all of these keys, which come before or after all queries.
    """
    WHOLE: tl.constexpr = PART % 2 == 1
    k_base, stride_k, head_dim, chosen_base = keys
    start, stop, positions, slope_positions = mask
    scale, cap, slope = scores
    top, best, best_left, total, tilt, squares, before, after, chosen = sums
    columns = left + tl.arange(0, N)
    k = load_rows(k_base, left, N, stride_k, head_dim, limit, D, EVEN_D, WHOLE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SOFTCAP or ALIBI or not POSITIVE_SCALE:
        s = modify_scores(s, slope_positions[:, None] - columns[None, :], scale, cap, slope, SOFTCAP, ALIBI)
        factor = 1.0
    else:
        factor = scale  # applied together with the subtraction of the maximum
    if not WHOLE:
        allowed = (columns[None, :] >= start[:, None]) & (columns[None, :] < tl.minimum(stop, limit)[:, None])
        s = tl.where(allowed, s, LOWEST)
    lane_tops = tl.max(tl.reshape(s, (M, N // LANES, LANES)), 1)
    best_left = tl.where(lane_tops > best, left, best_left)
    best = tl.maximum(best, lane_tops)
    new_top = tl.maximum(top, tl.max(lane_tops, 1) * factor)
    x = s * factor - new_top[:, None]
    p = tl.exp2(x)
    if not WHOLE:
        x = tl.where(allowed, x, 0.0)
        p = tl.where(allowed, p, 0.0)
    shift = (top - new_top)[:, None]
    fade = tl.exp2(shift)
    here = _sum_lanes(p, M, N)
    tilt = fade * (tilt + shift * total) + _sum_lanes(p * x, M, N)
    squares = fade * fade * squares + _sum_lanes(p * p, M, N)
    total = fade * total + here
    before, after = _add_distances(p, here, fade, left, columns, positions, before, after, PART, ONLY_BEFORE, M, N)
    if CHOSEN:
        weight = tl.load(chosen_base + columns, mask=columns < limit, other=0).to(tl.float32)
        chosen = fade * chosen + _sum_lanes(p * weight[None, :], M, N)
    return new_top, best, best_left, total, tilt, squares, before, after, chosen


@triton.jit
def _tile_bounds(start, stop, inside, positions, num_keys, N: tl.constexpr, ONLY_BEFORE: tl.constexpr):
    """Return the first key of a block of rows, the bounds of the whole tiles that come before and after all of its
    queries, and the end of its keys.
    """
    has_keys = inside & (stop > start)
    first = tl.min(tl.where(has_keys, start, num_keys))
    last = tl.max(tl.where(has_keys, stop, 0))
    low = tl.max(tl.where(inside, start, 0))  # all rows attend to keys [low, high)
    high = tl.min(tl.where(inside, stop, num_keys))
    first_position = tl.min(positions)
    num_before = tl.maximum(tl.minimum(high, first_position + 1) - low, 0) // N
    before_first = tl.where(num_before > 0, low, first)
    before_last = before_first + num_before * N
    after_first, after_last = last, last
    if not ONLY_BEFORE:
        last_position = tl.max(tl.where(inside, positions, first_position))
        begin = tl.maximum(tl.maximum(before_last, low), last_position)
        num_after = tl.maximum(high - begin, 0) // N
        after_first = tl.where(num_after > 0, begin, last)
        after_last = after_first + num_after * N
    return first, before_first, before_last, after_first, after_last, last


@triton.jit
def _store_rows(out, plane, inside, empty, sums, sink, HAS_SINKS: tl.constexpr, CHOSEN: tl.constexpr):
    """Write the statistics of rows, each to its plane of the result, in the order of `launch.RowStatistics`."""
    top, _, _, total, tilt, squares, before, after, chosen = sums
    total, tilt, squares = tl.sum(total, 1), tl.sum(tilt, 1), tl.sum(squares, 1)
    before, after, chosen = tl.sum(before, 1), tl.sum(after, 1), tl.sum(chosen, 1)
    total = tl.where(empty, 1.0, total)
    if HAS_SINKS:  # the larger of sink and maximum is the reference, so that nothing overflows
        height = tl.maximum(sink - top, 0.0)
        normalizer = total * tl.exp2(-height) + tl.exp2(sink - top - height)
        above_top = height + tl.log2(normalizer)  # lse - maximum, >= 0
        share = total * tl.exp2(-above_top)
    else:
        above_top = tl.log2(total)
        share = tl.where(empty, 0.0, 1.0)
    weight = share / total  # of a key with the maximum as its score
    lse = tl.where(empty, float("-inf"), top + above_top)
    tl.store(out, lse * LN_2, mask=inside)
    tl.store(out + plane, lse, mask=inside)
    tl.store(out + 2 * plane, tl.where(empty, 0.0, share * (above_top - tilt / total) * LN_2), mask=inside)
    tl.store(out + 3 * plane, tl.where(empty, 0.0, weight), mask=inside)
    tl.store(out + 4 * plane, tl.where(empty, float("-inf"), top * LN_2), mask=inside)
    tl.store(out + 5 * plane, tl.where(empty, 0.0, squares * weight * weight), mask=inside)
    tl.store(out + 6 * plane, tl.where(empty, 0.0, (before - after) / total), mask=inside)
    tl.store(out + 7 * plane, tl.where(empty, 0.0, (before + after) / total), mask=inside)
    tl.store(out + 8 * plane, tl.where(empty, 0.0, share), mask=inside)
    if CHOSEN:
        tl.store(out + 9 * plane, tl.where(empty, 0.0, chosen * weight), mask=inside)


@triton.jit
def row_kernel(
    Q, K, START, STOP, SLOPES, SINKS, CHOSEN_KEYS, OUT, CANDIDATES,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask, stride_chosen,
    num_heads, group, num_queries, num_keys, head_dim, offset, slope_offset, scale, cap,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN_D: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, HAS_SINKS: tl.constexpr, CHOSEN: tl.constexpr, POSITIVE_SCALE: tl.constexpr,
    ONLY_BEFORE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the statistics of M rows, and the first of the keys (in steps of LANES) that have the largest logit."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last rows of a causal mask have the most keys
    line = tl.program_id(1).to(tl.int64)
    batch, head = line // num_heads, line % num_heads
    rows = block * M + tl.arange(0, M)
    inside = rows < num_queries
    q_base = Q + batch * stride_qb + head * stride_qh
    q = load_rows(q_base, block * M, M, stride_qm, head_dim, num_queries, D, EVEN_D, False)
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    slope, sink = 0.0, 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    if HAS_SINKS:
        sink = tl.load(SINKS + head).to(tl.float32) * LOG2_E
    positions = rows + offset
    keys = K + batch * stride_kb + head // group * stride_kh, stride_kn, head_dim, CHOSEN_KEYS + batch * stride_chosen
    mask = start, stop, positions, rows + slope_offset
    scores = scale, cap, slope
    zeros = tl.zeros([M, LANES], tl.float32)
    lowest = tl.full([M, LANES], LOWEST, tl.float32)
    sums = tl.full([M], LOWEST, tl.float32), lowest, zeros.to(tl.int32), zeros, zeros, zeros, zeros, zeros, zeros
    bounds = _tile_bounds(start, stop, inside, positions, num_keys, N, ONLY_BEFORE)
    for part in tl.static_range(3 if ONLY_BEFORE else 5):
        for left in range(bounds[part], bounds[part + 1], N):
            sums = _add_tile(
                q, keys, mask, scores, sums, left, bounds[part + 1],
                part, M, N, D, EVEN_D, SOFTCAP, ALIBI, POSITIVE_SCALE, CHOSEN, ONLY_BEFORE, PRECISION,
            )  # fmt: skip
    empty = stop <= start
    plane = tl.num_programs(1).to(tl.int64) * num_queries
    _store_rows(OUT + line * num_queries + rows, plane, inside, empty, sums, sink, HAS_SINKS, CHOSEN)
    best, best_left = sums[1], sums[2]
    found = tl.where(best == tl.max(best, 1)[:, None], best_left + tl.arange(0, LANES)[None, :], NO_COLUMN)
    tl.store(CANDIDATES + line * num_queries + rows, tl.min(found, 1), mask=inside)
