"""What `attend` costs: against torch's own call, on masks with few cells, in memory, and linear attention at length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import Causal, Documents, Mask, Padding, Window, attend
from attnscope.attention.operation import Backend
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.variants import linear

HEADS, DIM = 8, 64
SLACK = 30e-6  # seconds that a call of ours may take beyond 1.05 times torch's


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    rounds: int
    lengths: tuple[int, ...]
    long: int
    documents: int
    streaming: int
    tokens: tuple[int, ...]


SIZES = {
    "small": Size(
        rounds=20, lengths=(512, 2048), long=8192, documents=16, streaming=2048, tokens=(2_000, 4_000, 8_000)
    ),
    "full": Size(
        rounds=20,
        lengths=(512, 1024, 2048, 4096, 8192),
        long=32_768,
        documents=16,
        streaming=8192,
        tokens=(250_000, 500_000, 1_000_000),
    ),
}


def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
    """All measurements, one table each."""
    chosen = SIZES[size]
    torch.manual_seed(0)
    with torch.no_grad():
        step("attend against torch")
        yield against_torch(chosen)
        step("masks that leave most cells out")
        yield few_cells(chosen)
        step("streaming")
        yield streaming(chosen)
    step("memory of forward and backward")
    yield memory()
    step("linear attention, token by token")
    with torch.no_grad():
        yield recurrent(chosen)


def against_torch(size: Size) -> Table:
    """`attend` beside a bare call of torch's fused attention with the same meaning."""
    table = Table(
        title="attend against bare F.scaled_dot_product_attention",
        comparison=f"Forward, fp32, {HEADS} heads of {DIM}, best of {size.rounds} in turns. Bound: 1.05x + 30 µs. "
        "Padded batch: 4 rows of n, 3n/4, n/2 and n/3 tokens; torch is given a boolean (4, 1, 1, n) mask.",
        columns=("n", "mask", "torch", "attend", "ratio", "bound kept"),
    )
    for length in size.lengths:
        for name, (theirs, ours) in _pairs(length).items():
            best = race({"torch": theirs, "attend": ours}, size.rounds)
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


def few_cells(size: Size) -> Table:
    """Masks that score few cells, beside the whole causal triangle."""
    table = Table(
        title="masks that leave most cells out, against full causal",
        comparison=f"attend, forward, fp32, {HEADS} heads of {DIM}, n = {size.long:,}, best of {size.rounds} in turns.",
        columns=("mask", "time", "share of full causal", "bound", "bound kept"),
    )
    tensors = _random(1, HEADS, size.long)
    documents = Causal() & Documents(torch.arange(size.long) // (size.long // size.documents))
    # The bounds are stated for 32,768 tokens; a window of 512 has fewer cells to leave out where n is smaller.
    masks: dict[str, tuple[Mask, float]] = {
        "Window(512)": (Window(512), 1 / 10 * 32_768 / size.long),
        f"{size.documents} documents, causal": (documents, 1 / 8),
    }
    calls = {"Causal()": lambda: attend(*tensors, mask=Causal())}
    calls |= {name: lambda mask=mask: attend(*tensors, mask=mask) for name, (mask, _) in masks.items()}
    best = race(calls, size.rounds)
    table.add("Causal()", duration(best["Causal()"]), "1", "", "")
    for name, (_, bound) in masks.items():
        share = best[name] / best["Causal()"]
        table.add(name, duration(best[name]), f"1/{1 / share:.1f}", f"1/{1 / bound:.1f}", met=share <= bound)
    return table


def streaming(size: Size) -> Table:
    """The streaming engine beside torch's fused call."""
    table = Table(
        title="streaming against bare F.scaled_dot_product_attention",
        comparison=f"Forward, fp32, causal, {HEADS} heads of {DIM}, best of {size.rounds} in turns.",
        columns=("n", "torch", "streaming", "ratio", "bound", "bound kept"),
    )
    query, key, value = _random(1, HEADS, size.streaming)
    calls = {
        "torch": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "streaming": lambda: attend(query, key, value, mask=Causal(), backend="streaming"),
    }
    best = race(calls, size.rounds)
    ratio = best["streaming"] / best["torch"]
    table.add(
        f"{size.streaming:,}",
        duration(best["torch"]),
        duration(best["streaming"]),
        f"{ratio:.2f}x",
        "6x",
        met=ratio <= 6,
    )
    return table


def memory() -> Table:
    """Peak memory of forward and backward for one head of 32,768 tokens."""
    length, bound = 32_768, 150e6
    dense = length * length * 4 / 2**30
    table = Table(
        title="memory of forward and backward",
        comparison=f"One head of {DIM}, n = {length:,}, causal, fp32: peak above the inputs, in a process of its own. "
        f"The dense matrix alone takes {dense:.0f} GiB.",
        columns=("engine", "peak extra", "bound", "bound kept"),
    )
    for engine in ("fused", "streaming"):
        peak = peak_extra_bytes(forward_and_backward, length, engine)
        table.add(engine, f"{peak / 1e6:.0f} MB", f"{bound / 1e6:.0f} MB", met=peak < bound)
    return table


def forward_and_backward(length: int, engine: Backend) -> Callable[[], object]:
    """Make one head ready for a forward and backward pass; a short one has already run."""

    def work(size: int) -> Callable[[], object]:
        tensors = [tensor.requires_grad_() for tensor in _random(1, 1, size)]
        return lambda: attend(*tensors, mask=Causal(), backend=engine).sum().backward()

    work(256)()
    return work(length)


def recurrent(size: Size) -> Table:
    """Linear attention token by token, carrying one state through pieces of 1,000 tokens."""
    table = Table(
        title="recurrent linear attention",
        comparison="One head of 64, fp32, token by token, in pieces of 1,000 tokens made when they are needed. "
        "Peak memory is the rise above the start, in a process of its own.",
        columns=("tokens", "time", "a token", "peak extra"),
    )
    for tokens in size.tokens:
        start = time.perf_counter()
        read_tokens(tokens)()
        spent = time.perf_counter() - start
        peak = peak_extra_bytes(read_tokens, tokens)
        table.add(f"{tokens:,}", f"{spent:.1f} s", f"{spent / tokens * 1e6:.1f} µs", f"{peak / 1e6:.1f} MB")
    return table


def read_tokens(tokens: int, piece: int = 1_000) -> Callable[[], object]:
    """Make a run over so many tokens ready; the first piece has already run."""

    def work(count: int) -> object:
        state = None
        with torch.no_grad():
            for _ in range(count // piece):
                _, state = linear.recurrent(*(tensor[0] for tensor in _random(1, 1, piece)), state=state)
        return state

    work(piece)
    return lambda: work(tokens)


def _random(batch: int, heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(batch, heads, length, DIM) for _ in range(3))
    return query, key, value
