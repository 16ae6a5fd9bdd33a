"""One layer of a long text as a published site, and how the time grows with the head dimension.

Only the first layer of the model reads the text: its queries and keys do not depend on other layers. The constants of
`benchmarks/publish_cost.py` come from here and from `python -m benchmarks publish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from attnscope.attention import Causal
from attnscope.bench import Size
from attnscope.bench.report import Table
from attnscope.explorer.static_site.publish import estimate
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from benchmarks.peers import SMOLLM2, find_model
from benchmarks.publish import FULL, SMALL, describe_text, publish_trace, publishing_table, record_text, view

ESTIMATES = 5
DIMS = (64, 128)


def tables(
    size: Size, step: Callable[[str], None], model: str | None = None, tokens: int | None = None
) -> Iterator[Table]:
    """Publish the heads of the first layer and view them; then how the time grows with the head dimension."""
    length, plan = tokens or size.choose(small=4096, full=131_072), size.choose(small=SMALL, full=FULL)
    with TemporaryDirectory() as place:
        folder = Path(place)
        source = find_model((model,) if model else size.choose(small=(), full=SMOLLM2), folder, step)
        step(f"recording {length:,} tokens")
        trial = publish_trace(record_text(source, length, folder / "trace", num_layers=1), folder, step)
        yield publishing_table(trial, f"{describe_text(source)}, first layer")
        yield from view(trial, plan, folder, step)
        step("head dimensions")
        yield dimension_table(length)


def estimate_head(length: int, head_dim: int) -> float:
    """The estimate of `attnscope publish` for a head of random queries and keys: the best of some."""
    query, key = (torch.randn(1, 1, length, head_dim) for _ in range(2))
    trace = Trace("synthetic")
    call = Call(query=query, key=key, value=None, mask=Causal(), scale=None)
    trace.layers["head"] = Layer("head", call, cross=False)
    return min(estimate(trace, [(0, 0)]).seconds for _ in range(ESTIMATES))


def dimension_table(length: int) -> Table:
    """The time of rows of heads of two dimensions."""
    small, large = (estimate_head(length, dim) for dim in DIMS)
    table = Table(
        title="Head dimension",
        comparison=f"Rows of a head of random queries and keys, {length:,} tokens, the best of {ESTIMATES}.",
        columns=("dimensions", "time of the larger / time of the smaller"),
    )
    table.add(f"{DIMS[0]} and {DIMS[1]}", f"{large / small:.2f}")
    return table
