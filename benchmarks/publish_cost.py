"""What publishing and viewing cost at other sizes, from constants that `python -m benchmarks publish` measured.

In: the shape of a model and the length of a text. Out: bytes, CPU seconds, and what viewers transfer. Queries, keys and
numbers per token grow with n; attention weights that are computed, and bins of stored tiles, grow with n squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from attnscope.atlas import ZoomPlan
from attnscope.bench import Size
from attnscope.bench.report import Table
from attnscope.explorer.static_site.plan import stored_levels
from attnscope.formatting import format_bytes

CHANNELS = 2
MEASURED_DIM = 64  # of the heads that were measured
HEAD_NUMBERS = 28
"""Bytes per token and head: log-sum-exp, entropy and received attention, and two links of a weight and a position."""
GB, MILLION = 1e9, 1_000_000
GB_PRICES, REQUEST_PRICES = (0.01, 0.10), (0.2, 1.0)
"""Dollars per GB and per million requests: a low and a high assumption, not prices of anybody."""


class SiteShape(NamedTuple):
    """The heads of a model."""

    num_layers: int
    num_heads: int
    """Per layer, as `num_kv_heads`."""
    num_kv_heads: int
    head_dim: int
    item_bytes: int
    """Of one number of a query or key."""

    @property
    def heads(self) -> int:
        """Heads of all layers."""
        return self.num_layers * self.num_heads


class Rates(NamedTuple):
    """Constants of one machine and text."""

    weight_seconds: float
    """CPU seconds per visible attention weight of a head of dimension 64."""
    token_seconds: float
    """CPU seconds per token of a head, besides."""
    dim_growth: float
    """Seconds per weight at head dimension 128 divided by those at 64."""
    bin_bytes: float
    """Bytes per visible bin of a stored tile, compressed."""


class Minute(NamedTuple):
    """What a viewer requests in a minute."""

    requests: int
    num_bytes: float


class HeadCost(NamedTuple):
    """One head: bytes by how they grow, and CPU seconds."""

    vectors: float
    """Queries and the share of the keys, in bytes; grows with n."""
    numbers: float
    """Grows with n."""
    tiles: float
    """Grows with n squared."""
    cpu_seconds: float

    @property
    def num_bytes(self) -> float:
        """All bytes."""
        return self.vectors + self.numbers + self.tiles


RESULT, LONG_RESULT = "publish_2026-11-19.md", "publish_long_2026-11-19.md"
"""The files in benchmarks/results that the constants below are from."""
HEAD_SECONDS = ((8192, 1.44), (131_072, 106.0))
"""Tokens, and CPU seconds of one head of SmolLM2."""
HEAD_BYTES = ((8192, 4.21e6), (131_072, 63.3e6))
"""Tokens, and bytes of one head with its share of the site."""
BIN_BYTES, DIM_GROWTH = 0.659, 1.07
MINUTES = {8192: Minute(888, 7.2e6), 131_072: Minute(108, 86.9e6)}
MODELS = {
    "SmolLM2-135M in float32": SiteShape(30, 9, 3, 64, 4),
    "a 70B model in bf16": SiteShape(80, 64, 8, 128, 2),
}
LONG_SHAPE = SiteShape(1, 9, 3, 64, 4)
"""The layer of the long text that was measured."""
LENGTHS = (8192, 131_072, 1_048_576)
COLUMNS = (
    *("model", "heads", "tokens", "queries and keys", "numbers per token", "tiles", "site", "one head"),
    *("CPU time of one head", "CPU time", "trace of one layer"),
)


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Predict sites of two models, and the cost of a million viewers; the size changes nothing."""
    step(f"computing ({size})")
    rates = fit_rates(*HEAD_SECONDS, dim_growth=DIM_GROWTH, bin_bytes=BIN_BYTES)
    yield check_table(rates)
    table = Table(
        title="The cost of publishing",
        comparison=f"Predicted from one core: {rates.weight_seconds * 1e9:.3g} ns per attention weight at head "
        f"dimension 64 and {rates.dim_growth:.3g} times as much at 128, {rates.token_seconds * 1e6:.3g} us per "
        f"token, {rates.bin_bytes:.3g} bytes per bin of a stored tile. The trace of a layer has queries and keys.",
        columns=COLUMNS,
    )
    for name, shape in MODELS.items():
        for length in LENGTHS:
            table.add(*site_row(name, shape, length, rates))
    yield table
    yield viewer_table()


def head_cost(shape: SiteShape, length: int, rates: Rates) -> HeadCost:
    """The cost of one causal head with its share of the keys.

    >>> cost = head_cost(SiteShape(1, 2, 1, 64, 4), 10, Rates(1.0, 0.0, 1.5, 0.5))
    >>> cost.vectors, cost.numbers, cost.tiles, cost.cpu_seconds
    (3840.0, 280, 55.0, 55.0)
    """
    keys = shape.num_kv_heads / shape.num_heads
    vectors = length * shape.head_dim * shape.item_bytes * (1 + keys)
    numbers = length * HEAD_NUMBERS
    per_weight = rates.weight_seconds * (1 + (rates.dim_growth - 1) * (shape.head_dim - MEASURED_DIM) / MEASURED_DIM)
    seconds = per_weight * count_visible(length) + rates.token_seconds * length
    return HeadCost(vectors, numbers, CHANNELS * count_bins(length) * rates.bin_bytes, seconds)


def count_visible(length: int) -> int:
    """The attention weights under a causal mask."""
    return length * (length + 1) // 2


def count_bins(length: int) -> int:
    """The bins of stored tiles that have a visible weight, in all levels.

    >>> count_bins(256), count_bins(512) == count_visible(512) + count_visible(256)
    (32896, True)
    """
    plan = ZoomPlan(length, length)
    return sum(count_visible(-(-length // plan.stride(z))) for z in stored_levels(plan))


def fit_rates(short: tuple[int, float], long: tuple[int, float], *, dim_growth: float, bin_bytes: float) -> Rates:
    """Solve for the seconds per weight and per token, from the length and the CPU seconds of a head of two texts.

    >>> fit_rates((10, 75.0), (100, 5250.0), dim_growth=1.0, bin_bytes=0.1)[:2]
    (1.0, 2.0)
    """
    (few, less), (many, more) = short, long
    per_weight = (more / many - less / few) / ((count_visible(many) / many) - (count_visible(few) / few))
    per_token = less / few - per_weight * count_visible(few) / few
    if per_weight <= 0 or per_token < 0:  # start-up or noise is more than what grows: leave out the smaller term
        per_weight, per_token = more / count_visible(many), 0.0
    return Rates(per_weight, per_token, dim_growth, bin_bytes)


def site_row(name: str, shape: SiteShape, length: int, rates: Rates) -> tuple[str, ...]:
    """The cells of a row of the cost of publishing."""
    cost, heads = head_cost(shape, length, rates), shape.heads
    trace = length * shape.head_dim * shape.item_bytes * (shape.num_heads + shape.num_kv_heads)
    sizes = [cost.vectors * heads, cost.numbers * heads, cost.tiles * heads, cost.num_bytes * heads, cost.num_bytes]
    return (
        *(name, f"{heads:,}", f"{length:,}", *map(format_bytes, sizes)),
        *(format_cpu(cost.cpu_seconds), format_cpu(cost.cpu_seconds * heads), format_bytes(trace)),
    )


def format_cpu(seconds: float) -> str:
    """Format CPU time.

    >>> format_cpu(3.21), format_cpu(600), format_cpu(36_000), format_cpu(7_200_000)
    ('3.2 s', '10 min', '10 hours', '2,000 hours')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{float(f'{seconds / 3600:.2g}'):,.0f} hours"


def viewer_bill(viewers: int, minute: Minute, *, per_gb: float, per_million_requests: float) -> float:
    """Dollars for viewers of one minute each, if nothing is in their caches.

    >>> viewer_bill(1_000_000, Minute(100, 2e6), per_gb=0.05, per_million_requests=1.0)
    200.0
    """
    return viewers * (minute.num_bytes / GB * per_gb + minute.requests / MILLION * per_million_requests)


def viewer_table() -> Table:
    """What a million viewers transfer, and what that costs under two assumptions."""
    table = Table(
        title="A million viewers",
        comparison="A minute each, with an empty cache, as `python -m benchmarks publish` measures it. The prices are "
        "assumptions: look up those of your host.",
        columns=("tokens", "requests", "bytes", "assumption", "transfer", "answering requests", "together"),
    )
    for length, minute in MINUTES.items():
        for gb, million in zip(GB_PRICES, REQUEST_PRICES, strict=True):
            transfer = viewer_bill(MILLION, minute._replace(requests=0), per_gb=gb, per_million_requests=million)
            total = viewer_bill(MILLION, minute, per_gb=gb, per_million_requests=million)
            sums = (f"${part:,.0f}" for part in (transfer, total - transfer, total))
            sent = f"{MILLION * minute.requests:,}", format_bytes(MILLION * minute.num_bytes)
            table.add(f"{length:,}", *sent, f"${gb:.2f} per GB, ${million:.2f} per million requests", *sums)
    return table


def check_table(rates: Rates) -> Table:
    """The prediction for the sites that the constants come from; their scripts and texts are not predicted."""
    table = Table(
        title="Prediction and measurement",
        comparison="One head of SmolLM2-135M in float32. The CPU time is fitted to both rows.",
        columns=("tokens", "bytes, predicted", "bytes, measured", "measured / predicted"),
    )
    shapes = MODELS["SmolLM2-135M in float32"], LONG_SHAPE
    for shape, (length, measured) in zip(shapes, HEAD_BYTES, strict=True):
        predicted = head_cost(shape, length, rates).num_bytes
        table.add(f"{length:,}", format_bytes(predicted), format_bytes(measured), f"{measured / predicted:.2f}")
    return table
