"""The cost of asking all heads which of them attends from one place to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from attnscope.attention import Causal
from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race, seconds
from attnscope.heads import find_heads
from attnscope.models.published_configs import DECODERS
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer

SHAPE = DECODERS["smollm2-135m"]
HEAD_DIM = SHAPE.hidden_size // SHAPE.num_heads
NUM_KV_HEADS = SHAPE.num_kv_heads or SHAPE.num_heads
BOUNDS = {"pair": 0.3, "row": 1.0}  # seconds
SPAN = 40  # tokens


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Ask all layers about a text, and one layer about a longer one; yield one table."""
    length, long, rounds = size.choose(small=(1024, 4096, 1), full=(8192, 131_072, 5))
    table = Table(
        title="find_heads",
        comparison=f"Random queries and keys of the shape of SmolLM2-135M ({SHAPE.num_heads} heads of "
        f"{HEAD_DIM}, {NUM_KV_HEADS} key-value heads), float32, causal, {torch.get_num_threads()} threads. "
        f"First: on a trace that nothing was asked before; then the best of {rounds}, as wall and CPU time. "
        f"Spans have {SPAN} tokens. A key alone is not measured: all queries attend to it, so it takes a whole pass.",
        columns=("tokens", "heads", "question", "first", "then", "CPU time", "bound", "bound kept"),
    )
    for tokens, layers in ((length, SHAPE.num_layers), (long, 1)):
        for name, question in questions(tokens).items():
            step(f"{name}, {tokens:,} tokens")
            trace = random_trace(tokens, layers)
            first = seconds(partial(question, trace))
            wall, cpu = race_both(partial(question, trace), rounds)
            bound = BOUNDS.get(name)
            cells = (f"{tokens:,}", f"{layers * SHAPE.num_heads:,}", name, duration(first), duration(wall))
            if bound is None:
                table.add(*cells, duration(cpu), "", "")
            else:
                table.add(*cells, duration(cpu), duration(bound), met=wall <= bound)
    yield table


def questions(tokens: int) -> dict[str, Callable[[Trace], object]]:
    """The questions by name: each takes a trace and returns a table of heads."""
    query, key = slice(tokens - SPAN, tokens), slice(tokens // 4, tokens // 4 + SPAN)
    return {
        "pair": partial(find_heads, query=tokens - 1, key=tokens // 4),
        "row": partial(find_heads, query=tokens - 1),
        "span to span": partial(find_heads, query=query, key=key),
    }


def race_both(call: Callable[[], object], rounds: int) -> tuple[float, ...]:
    """The best wall time, and the best CPU time of all threads, in seconds."""
    return tuple(race({"call": call}, rounds, clock)["call"] for clock in (time.perf_counter, time.process_time))


def random_trace(tokens: int, layers: int) -> Trace:
    """A trace with other random queries and keys in each layer."""
    torch.manual_seed(0)
    trace = Trace("random")
    for number in range(layers):
        query = torch.randn(1, SHAPE.num_heads, tokens, HEAD_DIM)
        key = torch.randn(1, NUM_KV_HEADS, tokens, HEAD_DIM)
        call = Call(query=query, key=key, value=None, mask=Causal(), scale=None)
        trace.layers[str(number)] = Layer(str(number), call, cross=False)
    return trace
