"""How fast a run is: tokens a second, and which share of the machine's arithmetic that is.

In: a model's shape, times. Out: numbers. The share (MFU, model FLOPs utilization) is what the model needs on paper,
divided by what a large matrix product reaches on this very device, which is measured when a run begins.
Does not know: the loop. Memory: one matrix product.
"""

from __future__ import annotations

import time

import torch

from attnscope.models import Decoder

TRIES = 5


def flops_per_token(model: torch.nn.Module, length: int) -> float | None:
    """Floating-point operations for a token, forward and backward; None for models that are no decoder.

    Two for each weight of a matrix and token forward, four backward, and the same for the products of attention, which
    on average sees half of the row.

    >>> from attnscope.models import DecoderConfig
    >>> model = Decoder(DecoderConfig(vocab_size=10, width=8, depth=1, heads=2, hidden=32, max_length=16))
    >>> flops_per_token(model, 16)
    5856.0
    """
    if not isinstance(model, Decoder):
        return None
    config = model.config
    weights = sum(
        weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and "embedding" not in name
    )
    weights += config.vocab_size * config.width if config.tied else 0
    wide = config.heads * (config.head_dim or config.width // config.heads)
    return 6.0 * weights + 6.0 * config.depth * wide * length


def peak_flops(device: torch.device, *, bf16: bool) -> float:
    """What a large matrix product reaches here, in operations a second."""
    size = 1024 if device.type == "cpu" else 8192
    matrix = torch.ones(size, size, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    best = float("inf")
    for _ in range(TRIES):
        started = time.perf_counter()
        total = (matrix @ matrix)[0, 0].item()  # reading a number waits for the device
        assert total
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


class ThroughputMeter:
    """Tokens a second since it was last asked; what is no training can be left out."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds, self._tokens = 0.0, 0

    def count(self, tokens: int) -> None:
        """So many tokens more have been learned from."""
        self._seconds += self._passed()
        self._tokens += tokens

    def leave_out(self) -> None:
        """Whatever was done since the last tokens was no training."""
        self._passed()

    def speed(self) -> float:
        """Tokens a second; counting starts anew."""
        speed = self._tokens / max(self._seconds, 1e-9)
        self._seconds, self._tokens = 0.0, 0
        return speed

    def _passed(self) -> float:
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return passed
