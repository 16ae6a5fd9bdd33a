"""How many tokens of a known model can be recorded in the memory that is left.

In: nothing. Out: lines from the counts that `record.estimate` makes: one layer with the heads of the model records some
tokens, which tells what a token holds. Memory: that layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attnscope.attention.plan import format_bytes
from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.recording.estimates import available_bytes, held_bytes, run_small_pass

MODEL, TITLE = "smollm2-135m", "SmolLM2-135M"
COUNTED = 1000  # tokens by which one is counted
LONG = 8192  # tokens that this model was made for


def limits(available: int | None = None) -> dict[str, str]:
    """What a token holds in each form, and how many fit into this much memory (default: what the system has left)."""
    available = available_bytes() if available is None else available
    config, layer = DECODERS[MODEL], one_layer()
    weights = weight_bytes(layer)
    room = None if available is None else max(available - weights, 0)
    each = token_bytes(layer)
    pair = 4 * config.num_layers * config.num_heads  # bytes of the weights between two tokens, in all heads
    built = "" if room is None else f"{rounded(math.isqrt(room // pair))} tokens; "
    return {
        "memory left": "not told by this system" if available is None else format_bytes(available),
        f"{TITLE} in fp32": f"{format_bytes(weights)} of weights; beside them there is room for",
        "by queries and keys": held_text(each["matrix"], room),
        "by statistics alone": held_text(each["statistics"], room),
        "by built matrices": f"{built}{LONG:,} would take {format_bytes(pair * LONG**2)}",
    }


def one_layer() -> Decoder:
    """The model with one layer and two words: all its layers are alike, and its words take no part in attention."""
    return Decoder(replace(DECODERS[MODEL], depth=1, vocab_size=2)).eval()


def weight_bytes(layer: Decoder) -> int:
    """What the weights of the whole model take in fp32, by what its one layer and two words have."""
    config = DECODERS[MODEL]
    each = sum(parameter.numel() for parameter in layer.blocks[0].parameters())
    found = sum(parameter.numel() for parameter in layer.parameters())
    return 4 * (found + (config.num_layers - 1) * each + (config.vocab_size - 2) * config.hidden_size)


def token_bytes(layer: Decoder) -> dict[str, float]:
    """What a trace of the whole model holds for each token, by what it keeps."""
    trace, depth = run_small_pass(layer, 1, {}), DECODERS[MODEL].num_layers
    return {
        keep: depth * held_bytes(trace, COUNTED, statistics=keep == "statistics") / COUNTED
        for keep in ("matrix", "statistics")
    }


def held_text(each: float, room: int | None) -> str:
    """How many tokens fit, and what each takes."""
    fit = "" if room is None else f"{rounded(room / each)} tokens, "
    return f"{fit}{format_bytes(each)} a token"


def rounded(count: float) -> str:
    """A number of tokens, with no more digits than an estimate has.

    >>> rounded(217_345)
    '217,000'
    """
    digits = max(len(str(int(count))) - 3, 0)
    return f"{int(count) // 10**digits * 10**digits:,}"
