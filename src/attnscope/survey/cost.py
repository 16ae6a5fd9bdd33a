"""The estimated cost of a survey: counts per token, and the seconds they take.

In: the shape of a decoder and the length of its passages. Out: counts, which hold on any machine, and with the rates of
one machine, seconds. Does not know: files, workers. The counts leave out reading, tokenizing and start-up, which do not
grow with the model.
"""

from __future__ import annotations

from typing import NamedTuple

from attnscope.models import DecoderConfig


class Cost(NamedTuple):
    """The cost of one token, as a mean over a passage."""

    flops: float
    """Floating-point operations of the matrix products with parameters, and of attention."""

    attention_weights: float
    """Attention weights that statistics are computed from: one per head and visible key."""

    binned_values: float
    """Values that are added to histograms: one per head and statistic."""


class Rates(NamedTuple):
    """What a machine does per second, in the units of `Cost`."""

    flops: float
    attention_weights: float
    binned_values: float

    def seconds(self, cost: Cost) -> float:
        """Seconds per token."""
        return sum(count / rate for count, rate in zip(cost, self, strict=True))


def cost_per_token(config: DecoderConfig, length: int, statistics: int) -> Cost:
    """Estimate the cost of one token in a passage of a given length.

    Each matrix parameter takes part in two operations; the output vocabulary is not computed. A query attends to half
    of the passage on average, and each query and key need two dot products of `head_dim`.

    Args:
        config: The shape of the decoder.
        length: Tokens per passage.
        statistics: The number of statistics per head.

    Returns:
        The counts per token.

    >>> config = DecoderConfig(
    ...     vocab_size=10, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=32, max_position_embeddings=16
    ... )
    >>> cost_per_token(config, 15, statistics=3)
    Cost(flops=1792.0, attention_weights=16.0, binned_values=6)
    """
    head_dim = config.head_dim or config.hidden_size // config.num_heads
    heads = config.num_heads * config.num_layers
    projections = 2 * config.hidden_size * head_dim * (config.num_heads + (config.num_kv_heads or config.num_heads))
    network = config.hidden_size * config.intermediate_size * (3 if config.gated else 2)
    visible = (length + 1) / 2
    flops = 2.0 * config.num_layers * (projections + network) + 4.0 * heads * head_dim * visible
    return Cost(flops, heads * visible, heads * statistics)
