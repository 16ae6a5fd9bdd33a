"""Finding retrieval heads takes O(n) memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnscope.bench.memory import peak_extra_bytes
from attnscope.heads import find_retrieval_heads
from attnscope.models import Decoder, DecoderConfig

LAYERS, HEADS = 2, 8


def find_heads(length: int) -> Callable[[], object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=500,
        hidden_size=128,
        num_layers=LAYERS,
        num_heads=HEADS,
        intermediate_size=64,
        max_position_embeddings=length,
        position_encoding="none",
    )
    model = Decoder(config).eval()
    ids = torch.randint(500, (length,))

    def work(length: int = length) -> None:
        find_retrieval_heads(model, ids, length=length, needles=4, ablations=1, progress=False)

    work(512)
    return work


@pytest.mark.slow
def test_four_times_the_length_takes_four_times_the_memory() -> None:
    short, long = (peak_extra_bytes(find_heads, length) for length in (4096, 16384))
    assert long < 5 * short
    assert long < LAYERS * HEADS * 16384**2 * 4 / 50  # of the weights
