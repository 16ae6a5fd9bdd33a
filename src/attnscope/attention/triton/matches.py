"""Weights on keys that have the id of their query, given lse, for several pairings of ids in one pass.

Ids may be those of tokens, of the tokens before, or of documents. The number of such keys that the mask allows is the
same for all heads, and is counted without scores.
"""

from __future__ import annotations

from attnscope.attention.triton.language import tl, triton
from attnscope.attention.triton.spread import key_bounds
from attnscope.attention.triton.tiles import LOG2_E, load_rows, modify_scores


@triton.jit
def _is_match(QUERY_IDS, KEY_IDS, pairing, num_queries, num_keys, rows, inside, columns, limit):
    """Return which rows have the id of which columns, for a pairing of one batch row."""
    own = tl.load(QUERY_IDS + pairing * num_queries + rows, mask=inside, other=0)
    ids = tl.load(KEY_IDS + pairing * num_keys + columns, mask=columns < limit, other=0)
    return own[:, None] == ids[None, :]


@triton.jit
def match_kernel(
    Q, K, LSE, START, STOP, SLOPES, QUERY_IDS, KEY_IDS, OUT,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_mask,
    num_heads, group, num_queries, num_keys, num_batch, head_dim, slope_offset, scale, cap,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, P: tl.constexpr, PAIRINGS: tl.constexpr, EVEN_D: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the weight of M rows on the keys with the id of their query; P is the power of 2 from PAIRINGS on."""
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
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + head).to(tl.float32) * LOG2_E
    k_base = K + batch * stride_kb + head // group * stride_kh
    each = tl.arange(0, P)
    totals = tl.zeros([M, P], tl.float32)
    bounds = key_bounds(start, stop, inside, num_keys, N)
    for part in tl.static_range(3):
        for left in range(bounds[part], bounds[part + 1], N):
            columns = left + tl.arange(0, N)
            k = load_rows(k_base, left, N, stride_kn, head_dim, bounds[part + 1], D, EVEN_D, part == 1)
            products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            distance = (rows + slope_offset)[:, None] - columns[None, :]
            s = modify_scores(products, distance, scale, cap, slope, SOFTCAP, ALIBI)
            w = tl.exp2(s - lse[:, None])
            if part != 1:
                limit = tl.minimum(stop, bounds[part + 1])
                w = tl.where((columns[None, :] >= start[:, None]) & (columns[None, :] < limit[:, None]), w, 0.0)
            for at in tl.static_range(PAIRINGS):
                same = _is_match(
                    QUERY_IDS, KEY_IDS, at * num_batch + batch, num_queries, num_keys, rows, inside, columns,
                    bounds[part + 1],
                )  # fmt: skip
                totals += tl.where(each[None, :] == at, tl.sum(tl.where(same, w, 0.0), 1)[:, None], 0.0)
    to = OUT + (line * PAIRINGS + each[None, :]) * num_queries + rows[:, None]
    tl.store(to, totals, mask=inside[:, None] & (each < PAIRINGS)[None, :])


@triton.jit
def match_count_kernel(
    START, STOP, QUERY_IDS, KEY_IDS, COUNTS,
    stride_mask, num_queries, num_keys, num_batch,
    M: tl.constexpr, N: tl.constexpr, PAIRINGS: tl.constexpr,
):  # fmt: skip
    """Write the number of keys of M rows that the mask allows and that have the id of their query, for one pairing."""
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(2)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inside = rows < num_queries
    start = tl.load(START + batch * stride_mask + rows, mask=inside, other=0)
    stop = tl.load(STOP + batch * stride_mask + rows, mask=inside, other=0)
    bounds = key_bounds(start, stop, inside, num_keys, N)
    counts = tl.zeros([M], tl.int32)
    for left in range(bounds[0], bounds[3], N):
        columns = left + tl.arange(0, N)
        same = _is_match(
            QUERY_IDS, KEY_IDS, at * num_batch + batch, num_queries, num_keys, rows, inside, columns, bounds[3]
        )  # fmt: skip
        allowed = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
        counts += tl.sum((same & allowed).to(tl.int32), 1)
    tl.store(COUNTS + (batch * PAIRINGS + at) * num_queries + rows, counts.to(tl.int64), mask=inside)
