"""What a survey costs on paper: operations, cells and numbers for each token, and the seconds that these take.

In: the shape of a decoder and the length of its passages. Out: counts, which hold on any machine, and from the rates of
one machine, seconds. Does not know: files, workers. What the counts leave out (reading, tokenising, start-up) does not
grow with the model.
"""

from __future__ import annotations

from typing import NamedTuple

from attnscope.models import DecoderConfig


class Cost(NamedTuple):
    """Of one token, as a mean over a passage."""

    products: float
    """Floating-point operations of the model's weights and of its attention."""

    cells: float
    """Attention weights that statistics are summed from: one for each head and key that is seen."""

    values: float
    """Numbers that are put into bins: one for each head and statistic."""


class Rates(NamedTuple):
    """What a machine does in a second, in the same units."""

    products: float
    cells: float
    values: float

    def seconds(self, cost: Cost) -> float:
        """The time that one token takes."""
        return sum(count / rate for count, rate in zip(cost, self, strict=True))


def cost_a_token(config: DecoderConfig, length: int, statistics: int) -> Cost:
    """What reading one token in a passage of `length` tokens costs, with so many statistics a head.

    Each weight of a matrix takes part in two operations; those of the output vocabulary are not asked for. A query
    sees half of the passage on average, and for each key that it sees, two products as wide as a head are taken.

    >>> config = DecoderConfig(
    ...     vocab_size=10, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=32, max_position_embeddings=16
    ... )
    >>> cost_a_token(config, 15, statistics=3)
    Cost(products=1792.0, cells=16.0, values=6)
    """
    head_dim = config.head_dim or config.hidden_size // config.num_heads
    heads = config.num_heads * config.num_layers
    projections = 2 * config.hidden_size * head_dim * (config.num_heads + (config.num_kv_heads or config.num_heads))
    network = config.hidden_size * config.intermediate_size * (3 if config.gated else 2)
    seen = (length + 1) / 2
    products = 2.0 * config.num_layers * (projections + network) + 4.0 * heads * head_dim * seen
    return Cost(products, heads * seen, heads * statistics)
