"""Estimates surveys on one H100 from the counts of the cost model and the roofline of the kernels, without a GPU."""

from __future__ import annotations

from typing import NamedTuple

from attnscope.bench.report import Table
from attnscope.models import DecoderConfig
from attnscope.models.published_configs import DECODERS
from attnscope.survey.cost import cost_per_token
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.settings import BATCH_TOKENS
from benchmarks.roofline import CLOCKS_PER_SECOND

MODELS = ("smollm2-135m", "smollm2-1.7b", "llama-3.1-8b")  # in bf16, each fits into one GPU, as a survey needs
LENGTH = 2048
NUM_TOKENS = (10**6, 10**9, 10**12)

FLOPS_PER_SECOND = 400e12
"""Of an H100 in bf16, of 989e12."""
LAUNCHES, LAUNCH_SECONDS = 20, 7e-6
"""Kernels of a layer and batch for a summary with pairings, counted on simulated CUDA, and the time of each."""
GATHERING_LAUNCHES, GATHERING_BYTES = 64, 312
"""Kernels of a layer and batch, and bytes per gathered number, of `survey.partials.batch_sums`, counted likewise."""
BYTES_PER_SECOND = 2e12
"""Of an H100, of 3.35e12."""


class TokenCost(NamedTuple):
    """Seconds per token."""

    forward: float
    passes: float  #: the row pass and the column pass
    launches: float
    gathering: float


def estimate_token(config: DecoderConfig, clocks: float) -> TokenCost:
    """Return the estimated seconds per token, with `clocks` per attention weight for both passes together."""
    cost = cost_per_token(config, LENGTH, len(STATISTICS))
    return TokenCost(
        cost.flops / FLOPS_PER_SECOND,
        cost.attention_weights * clocks / CLOCKS_PER_SECOND,
        config.num_layers * (LAUNCHES + GATHERING_LAUNCHES) * LAUNCH_SECONDS / BATCH_TOKENS,
        cost.binned_values * GATHERING_BYTES / BYTES_PER_SECOND,
    )


def estimate_surveys(clocks: float) -> Table:
    """Return the estimated cost of surveys with larger models and corpora."""
    table = Table(
        title="Surveys on one H100",
        comparison=f"not measured: passages and batches of {LENGTH:,} tokens, {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s in "
        f"the forward pass, {clocks:.3f} clocks per attention weight for the row and the column pass, "
        f"{LAUNCHES + GATHERING_LAUNCHES:,} launches of {1e6 * LAUNCH_SECONDS:.0f} microseconds per layer and batch, "
        f"and {GATHERING_BYTES:,} bytes per gathered number at {BYTES_PER_SECOND / 1e12:g} TB/s. Times are in "
        "microseconds per token.",
        columns=("model", "forward pass", "row and column pass", "launches", "gathering", "tokens per second and GPU",
                 "GPU-hours for 1e6", "1e9", "1e12", "queries and keys of 1e9 tokens in bf16"),
    )  # fmt: skip
    for name in MODELS:
        config = DECODERS[name]
        cost = estimate_token(config, clocks)
        heads = config.num_heads + (config.num_kv_heads or config.num_heads)
        stored_bytes = 2 * config.num_layers * heads * (config.head_dim or 0)
        hours = [rounded(tokens * sum(cost) / 3600) for tokens in NUM_TOKENS]
        table.add(
            name, *(rounded(1e6 * part) for part in cost), f"{1 / sum(cost):,.0f}", *hours,
            f"{rounded(stored_bytes * 10**9 / 1e12)} TB",
        )  # fmt: skip
    return table


def rounded(number: float) -> str:
    """Format a number with two significant digits.

    >>> rounded(0.0254), rounded(1894.2)
    ('0.025', '1,900')
    """
    return f"{float(f'{number:.2g}'):,.10g}"
