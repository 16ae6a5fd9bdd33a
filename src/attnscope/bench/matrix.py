"""The cost of AttentionMatrix: operations compared with one attention call, memory, and a million tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import Causal
from attnscope.bench import Size
from attnscope.bench.memory import peak_extra_bytes, with_peak_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race, seconds
from attnscope.errors import Cancelled
from attnscope.matrix import AttentionMatrix

DIM = 64


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    long = size.choose(small=16_384, full=131_072)
    torch.manual_seed(0)
    with torch.no_grad():
        step("each operation compared with one attention call")
        yield compare_with_torch(size.choose(small=4096, full=16_384), size.choose(small=3, full=20))
        step("memory of reductions at length")
        yield memory(long)
        step("tiles, rows and an overview of the longest matrix")
        yield reading(size.choose(small=100_000, full=1_000_000), size.choose(small=20, full=100))
        step("cancelling")
        yield cancelling(max(long, 65_536))


def operations(length: int) -> dict[str, tuple[Callable[[], object], float | None]]:
    """Return each operation on one causal head, and its bound as a multiple of one attention call."""
    query, key = random_head(length)
    values = torch.randn(length, DIM)
    cached = AttentionMatrix(query, key, mask=Causal())
    _ = cached.lse

    def fresh() -> AttentionMatrix:
        return AttentionMatrix(query, key, mask=Causal())

    return {
        "lse": (lambda: fresh().lse, 1.1),
        "entropy, with lse": (lambda: fresh().entropy(), 2.3),
        "received, with lse": (lambda: fresh().received(), 2.4),
        "A @ F, 64 columns": (lambda: cached @ values, 1.3),
        "A.T @ G, 64 columns": (lambda: cached.T @ values, 1.5),
        "pool(256, 256), with lse": (lambda: fresh().pool(256, 256), 5.0),
        "entropy(exact=True)": (lambda: cached.entropy(exact=True), None),
        "effective_keys": (lambda: cached.effective_keys(), None),
        "distance": (lambda: cached.distance(), None),
        "topk(5)": (lambda: cached.topk(5), None),
        'pool(256, 256, "max")': (lambda: cached.pool(256, 256, "max"), None),
        "entropy of a dense matrix": (lambda: dense_entropy(query, key), None),
    }


def compare_with_torch(length: int, rounds: int) -> Table:
    """Compare every operation with a forward pass of torch's attention on the same query and key."""
    table = Table(
        title="operations compared with F.scaled_dot_product_attention",
        comparison=f"One head of {DIM}, n = {length:,}, causal, fp32, best of {rounds} alternating runs. Operations "
        "without 'with lse' start from a cached log-sum-exp.",
        columns=("operation", "time", "ratio", "bound", "bound kept"),
    )
    query, key = random_head(length)
    measured = operations(length)
    calls: dict[str, Callable[[], object]] = {
        "torch": lambda: F.scaled_dot_product_attention(query, key, key, is_causal=True)
    }
    best = race(calls | {name: call for name, (call, _) in measured.items()}, rounds)
    table.add("one attention call of torch", duration(best["torch"]), "1.00x", "", "")
    for name, (_, bound) in measured.items():
        ratio = best[name] / best["torch"]
        row = (name, duration(best[name]), f"{ratio:.2f}x")
        if bound is None:
            table.add(*row, "", "")
        else:
            table.add(*row, f"{bound}x", met=ratio <= bound)
    return table


def dense_entropy(query: Tensor, key: Tensor) -> Tensor:
    """Compute the entropy of each row from the dense matrix."""
    scores = (query[0, 0] @ key[0, 0].T) / DIM**0.5
    scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -torch.inf)
    weights = scores.softmax(-1)
    return -torch.special.xlogy(weights, weights).sum(-1)


def memory(length: int) -> Table:
    """Measure the peak memory of four reductions of one long head."""
    bound = 500e6
    table = Table(
        title="memory of reductions",
        comparison=f"entropy, received, distance and pool(512, 512) of one head of {DIM}, n = {length:,}, causal, "
        "fp32: peak memory above query and key, in a separate process. The dense matrix takes "
        f"{length**2 * 4 / 2**30:.0f} GiB.",
        columns=("n", "peak extra", "bound", "bound kept"),
    )
    peak = peak_extra_bytes(reductions, length)
    table.add(f"{length:,}", f"{peak / 1e6:.0f} MB", f"{bound / 1e6:.0f} MB", met=peak < bound)
    return table


def reductions(length: int) -> Callable[[], object]:
    """Return four reductions that are ready to run; short ones have warmed up torch."""

    def work(size: int) -> Callable[[], object]:
        matrix = AttentionMatrix(*random_head(size), mask=Causal())
        bins = min(512, size)
        return lambda: (matrix.entropy(), matrix.received(), matrix.distance(), matrix.pool(bins, bins))

    work(600)()
    return work(length)


def reading(length: int, tiles: int) -> Table:
    """Measure exact tiles, one full row and a sampled overview of a bf16 matrix without a cached log-sum-exp."""
    table = Table(
        title="reading a matrix that is too long for reductions",
        comparison=f"One head of {DIM}, n = {length:,} ({length**2:.0e} cells), causal, bf16 query and key, no cached "
        f"log-sum-exp. {tiles} tiles of 256 x 256 at random positions below the diagonal. Peak memory is that of the "
        "whole process.",
        columns=("what", "measured", "bound", "bound kept"),
    )
    spent, peak = with_peak_bytes(read, length, tiles)
    bounds = {"tile, 95th percentile": 1.5, "one full row": 0.3, "sampled 512 x 512 overview": 10.0}
    for name, bound in bounds.items():
        table.add(name, duration(spent[name]), f"{bound} s", met=spent[name] < bound)
    table.add("peak memory", f"{peak / 1e6:.0f} MB", "2000 MB", met=peak < 2e9)
    return table


def read(length: int, tiles: int) -> dict[str, float]:
    """Return the seconds for tiles, a row and an overview."""
    generator = torch.Generator().manual_seed(0)
    query, key = (tensor.to(torch.bfloat16) for tensor in random_head(length))
    matrix = AttentionMatrix(query, key, mask=Causal()).batch(0).head(0)
    corners = torch.randint(length - 256, (tiles, 2), generator=generator).sort(descending=True).values.tolist()
    times = sorted(seconds(lambda i=i, j=j: matrix[i : i + 256, j : j + 256]) for i, j in corners)
    return {
        "tile, 95th percentile": times[int(0.95 * (len(times) - 1))],
        "one full row": seconds(lambda: matrix[length - 1]),
        "sampled 512 x 512 overview": seconds(lambda: matrix.sample(512, 512)),
    }


def cancelling(length: int) -> Table:
    """Measure how long a reduction continues after it is cancelled."""
    table = Table(
        title="cancelling",
        comparison=f"One head of {DIM}, n = {length:,}, causal, fp32; cancelled after one second.",
        columns=("reduction", "stopped after", "bound", "bound kept"),
    )
    calls: dict[str, Callable[[AttentionMatrix], object]] = {
        "entropy": lambda matrix: matrix.entropy(),
        "received": lambda matrix: matrix.received(),
        "distance": lambda matrix: matrix.distance(),
        "pool": lambda matrix: matrix.pool(512, 512),
    }
    for name, call in calls.items():
        spent = seconds_to_stop(call, length)
        table.add(name, duration(spent), "0.5 s", met=spent < 0.5)
    return table


def seconds_to_stop(call: Callable[[AttentionMatrix], object], length: int) -> float:
    """Start a reduction, cancel it after one second, and return how long it continued."""
    stop = threading.Event()
    matrix = AttentionMatrix(*random_head(length), mask=Causal()).with_options(should_stop=stop.is_set)
    cancelled_at: list[float] = []

    def cancel() -> None:
        cancelled_at.append(time.perf_counter())
        stop.set()

    timer = threading.Timer(1.0, cancel)
    timer.start()
    try:
        call(matrix)
    except Cancelled:
        return time.perf_counter() - cancelled_at[0]
    timer.cancel()
    return 0.0  # it finished before it was cancelled


def random_head(length: int) -> tuple[Tensor, Tensor]:
    """Return random query and key of one head, (1, 1, length, 64) each."""
    return torch.randn(1, 1, length, DIM), torch.randn(1, 1, length, DIM)
