"""How many tokens of a known model can be recorded in the available memory.

In: nothing. Out: lines from the counts of `attnscope.recording.estimate`: one layer of the model records a few tokens,
which gives the bytes per token. Memory: that layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attnscope.formatting import format_bytes
from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.recording.estimates import available_bytes, held_bytes, run_small_pass

MODEL, TITLE = "smollm2-135m", "SmolLM2-135M"
SAMPLE_LENGTH = 1000  # tokens
CONTEXT_LENGTH = 8192  # tokens, of this model


def limits(available: int | None = None) -> dict[str, str]:
    """Return the bytes per token of each kind of trace, and how many tokens fit into this many bytes.

    By default, `available` is the free memory of the system.
    """
    available = available_bytes() if available is None else available
    config, layer = DECODERS[MODEL], one_layer()
    parameters = parameter_bytes(layer)
    room = None if available is None else max(available - parameters, 0)
    per_token = token_bytes(layer)
    pair = 4 * config.num_layers * config.num_heads  # bytes of the attention weights of two tokens, in all heads
    dense = "" if room is None else f"{format_rounded(math.isqrt(room // pair))} tokens; "
    return {
        "available memory": "unknown" if available is None else format_bytes(available),
        f"{TITLE} in fp32": f"{format_bytes(parameters)} of parameters; the rest has room for",
        "as queries and keys": format_limit(per_token["matrix"], room),
        "as statistics": format_limit(per_token["statistics"], room),
        "as dense matrices": f"{dense}{CONTEXT_LENGTH:,} would take {format_bytes(pair * CONTEXT_LENGTH**2)}",
    }


def one_layer() -> Decoder:
    """Return the model with one layer and two tokens: all layers are alike, and embeddings are not recorded."""
    return Decoder(replace(DECODERS[MODEL], num_layers=1, vocab_size=2)).eval()


def parameter_bytes(layer: Decoder) -> int:
    """Return the size of the whole model in fp32, computed from its one layer and two tokens."""
    config = DECODERS[MODEL]
    each = sum(parameter.numel() for parameter in layer.blocks[0].parameters())
    found = sum(parameter.numel() for parameter in layer.parameters())
    return 4 * (found + (config.num_layers - 1) * each + (config.vocab_size - 2) * config.hidden_size)


def token_bytes(layer: Decoder) -> dict[str, float]:
    """Return the bytes per token of a trace of the whole model, by the value of `keep`."""
    trace, num_layers = run_small_pass(layer, 1, {}), DECODERS[MODEL].num_layers
    return {
        keep: num_layers * held_bytes(trace, SAMPLE_LENGTH, statistics=keep == "statistics") / SAMPLE_LENGTH
        for keep in ("matrix", "statistics")
    }


def format_limit(per_token: float, room: int | None) -> str:
    """Format how many tokens fit, and the bytes per token."""
    fit = "" if room is None else f"{format_rounded(room / per_token)} tokens, "
    return f"{fit}{format_bytes(per_token)} per token"


def format_rounded(count: float) -> str:
    """Format a number of tokens with three significant digits.

    >>> format_rounded(217_345)
    '217,000'
    """
    digits = max(len(str(int(count))) - 3, 0)
    return f"{int(count) // 10**digits * 10**digits:,}"
