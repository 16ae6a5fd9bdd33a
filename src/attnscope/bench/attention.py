"""The cost of `attend`: compared with torch, with sparse masks, in memory, and of linear attention at length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import Causal, Documents, Mask, Padding, Window, attend
from attnscope.attention.operation import Backend
from attnscope.bench import Size
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.variants import linear

HEADS, DIM = 8, 64
ROUNDS = 20
SLACK = 30e-6  # seconds that a call may take beyond 1.05 times the time of torch


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    documents = 16
    long = size.choose(small=8192, full=32_768)
    torch.manual_seed(0)
    with torch.no_grad():
        step("attend compared with torch")
        yield compare_with_torch(size.choose(small=(512, 2048), full=(512, 1024, 2048, 4096, 8192)))
        step("sparse masks")
        yield sparse_masks(long, documents)
        step("streaming")
        yield streaming(size.choose(small=2048, full=8192))
    step("memory of forward and backward")
    yield memory()
    step("linear attention, token by token")
    with torch.no_grad():
        yield recurrent(size.choose(small=(2_000, 4_000, 8_000), full=(250_000, 500_000, 1_000_000)))


def compare_with_torch(lengths: Sequence[int]) -> Table:
    """Compare `attend` with equivalent calls of `F.scaled_dot_product_attention`."""
    table = Table(
        title="attend compared with F.scaled_dot_product_attention",
        comparison=f"Forward, fp32, {HEADS} heads of {DIM}, best of {ROUNDS} alternating runs. Bound: 1.05x + 30 µs. "
        "Padded batch: 4 rows of n, 3n/4, n/2 and n/3 tokens; torch gets a boolean (4, 1, 1, n) mask.",
        columns=("n", "mask", "torch", "attend", "ratio", "bound kept"),
    )
    for length in lengths:
        for name, (theirs, ours) in _pairs(length).items():
            best = race({"torch": theirs, "attend": ours}, ROUNDS)
            met = best["attend"] <= 1.05 * best["torch"] + SLACK
            ratio = best["attend"] / best["torch"]
            table.add(f"{length:,}", name, duration(best["torch"]), duration(best["attend"]), f"{ratio:.2f}x", met=met)
    return table


def _pairs(length: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    query, key, value = _random(1, HEADS, length)
    shared_key, shared_value = key[:, :2], value[:, :2]
    four = _random(4, HEADS, length)
    lengths = [length, length * 3 // 4, length // 2, length // 3]
    keep = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    causal, padding = Causal(), Padding(lengths)
    torch_call = F.scaled_dot_product_attention
    return {
        "causal": (
            lambda: torch_call(query, key, value, is_causal=True),
            lambda: attend(query, key, value, mask=causal),
        ),
        "full": (lambda: torch_call(query, key, value), lambda: attend(query, key, value)),
        "causal, 2 key heads": (
            lambda: torch_call(query, shared_key, shared_value, is_causal=True, enable_gqa=True),
            lambda: attend(query, shared_key, shared_value, mask=causal),
        ),
        "padded batch": (
            lambda: torch_call(*four, attn_mask=keep[:, None, None]),
            lambda: attend(*four, mask=padding),
        ),
    }


def sparse_masks(length: int, documents: int) -> Table:
    """Compare masks that allow few cells with the full causal mask."""
    table = Table(
        title="sparse masks compared with full causal",
        comparison=f"attend, forward, fp32, {HEADS} heads of {DIM}, n = {length:,}, best of {ROUNDS} alternating runs.",
        columns=("mask", "time", "share of full causal", "bound", "bound kept"),
    )
    tensors = _random(1, HEADS, length)
    document_mask = Causal() & Documents(torch.arange(length) // (length // documents))
    # The bounds are for 32,768 tokens. At smaller n, a window of 512 is a larger share of the matrix.
    masks: dict[str, tuple[Mask, float]] = {
        "Window(512)": (Window(512), 1 / 10 * 32_768 / length),
        f"{documents} documents, causal": (document_mask, 1 / 8),
    }
    calls = {"Causal()": lambda: attend(*tensors, mask=Causal())}
    calls |= {name: lambda mask=mask: attend(*tensors, mask=mask) for name, (mask, _) in masks.items()}
    best = race(calls, ROUNDS)
    table.add("Causal()", duration(best["Causal()"]), "1", "", "")
    for name, (_, bound) in masks.items():
        share = best[name] / best["Causal()"]
        table.add(name, duration(best[name]), f"1/{1 / share:.1f}", f"1/{1 / bound:.1f}", met=share <= bound)
    return table


def streaming(length: int) -> Table:
    """Compare the streaming backend with the fused kernel of torch."""
    table = Table(
        title="streaming compared with F.scaled_dot_product_attention",
        comparison=f"Forward, fp32, causal, {HEADS} heads of {DIM}, best of {ROUNDS} alternating runs.",
        columns=("n", "torch", "streaming", "ratio", "bound", "bound kept"),
    )
    query, key, value = _random(1, HEADS, length)
    calls = {
        "torch": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "streaming": lambda: attend(query, key, value, mask=Causal(), backend="streaming"),
    }
    best = race(calls, ROUNDS)
    ratio = best["streaming"] / best["torch"]
    table.add(
        f"{length:,}",
        duration(best["torch"]),
        duration(best["streaming"]),
        f"{ratio:.2f}x",
        "6x",
        met=ratio <= 6,
    )
    return table


def memory() -> Table:
    """Measure the peak memory of a forward and backward pass over one head of 32,768 tokens."""
    length, bound = 32_768, 150e6
    dense = length * length * 4 / 2**30
    table = Table(
        title="memory of forward and backward",
        comparison=f"One head of {DIM}, n = {length:,}, causal, fp32: peak memory above the inputs, in a separate "
        "process. "
        f"The dense matrix alone takes {dense:.0f} GiB.",
        columns=("backend", "peak extra", "bound", "bound kept"),
    )
    for backend in ("fused", "streaming"):
        peak = peak_extra_bytes(forward_and_backward, length, backend)
        table.add(backend, f"{peak / 1e6:.0f} MB", f"{bound / 1e6:.0f} MB", met=peak < bound)
    return table


def forward_and_backward(length: int, backend: Backend) -> Callable[[], object]:
    """Return a forward and backward pass over one head that is ready to run; a short one has warmed up torch."""

    def work(size: int) -> Callable[[], object]:
        tensors = [tensor.requires_grad_() for tensor in _random(1, 1, size)]
        return lambda: attend(*tensors, mask=Causal(), backend=backend).sum().backward()

    work(256)()
    return work(length)


def recurrent(lengths: Sequence[int]) -> Table:
    """Measure recurrent linear attention; its state is passed on between chunks of 1,000 tokens."""
    table = Table(
        title="recurrent linear attention",
        comparison="One head of 64, fp32, token by token, in chunks of 1,000 tokens that are created on demand. "
        "Peak memory is above that at the start, in a separate process.",
        columns=("tokens", "time", "time per token", "peak extra"),
    )
    for tokens in lengths:
        start = time.perf_counter()
        read_tokens(tokens)()
        spent = time.perf_counter() - start
        peak = peak_extra_bytes(read_tokens, tokens)
        table.add(f"{tokens:,}", f"{spent:.1f} s", f"{spent / tokens * 1e6:.1f} µs", f"{peak / 1e6:.1f} MB")
    return table


def read_tokens(tokens: int, chunk_size: int = 1_000) -> Callable[[], object]:
    """Return a run over that many tokens that is ready to run; one chunk has warmed up torch."""

    def work(count: int) -> object:
        state = None
        with torch.no_grad():
            for _ in range(count // chunk_size):
                _, state = linear.recurrent(*(tensor[0] for tensor in _random(1, 1, chunk_size)), state=state)
        return state

    work(chunk_size)
    return lambda: work(tokens)


def _random(batch: int, heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(batch, heads, length, DIM) for _ in range(3))
    return query, key, value
