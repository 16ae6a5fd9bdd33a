"""Throughput of a run: tokens per second, and model FLOPs utilization (MFU).

In: the shape of a model, times. Out: numbers. MFU (Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311) is the
FLOPs per second that the model needs at the measured speed, divided by the peak of the device. Here the peak is the
speed of a large matrix product, measured once in a process, when its first run starts.
Does not know: the loop. Memory: one matrix product.
"""

from __future__ import annotations

import time
import timeit
from functools import cache

import torch

from attnscope.models import Decoder

REPETITIONS = 5


def flops_per_token(model: torch.nn.Module, length: int) -> float | None:
    """Return the FLOPs per token of a forward and a backward pass; None if the model is not a decoder.

    Each matrix parameter takes two FLOPs per token in the forward pass and four in the backward pass. The two products
    of attention count in the same way; with a causal mask, a query attends to half of the sequence on average.

    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=10, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=32, max_position_embeddings=16
    ... )
    >>> flops_per_token(Decoder(config), 16)
    5856.0
    """
    if not isinstance(model, Decoder):
        return None
    config = model.config
    matrices = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and "embedding" not in name
    )
    matrices += config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
    attention_size = config.num_heads * (config.head_dim or config.hidden_size // config.num_heads)
    return 6.0 * matrices + 6.0 * config.num_layers * attention_size * length


@cache
def peak_flops(device: torch.device, *, bf16: bool) -> float:
    """Return the FLOPs per second of a large matrix product on this device."""
    size = 1024 if device.type == "cpu" else 8192
    matrix = torch.ones(size, size, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    # `item` waits for the device.
    seconds = timeit.repeat(lambda: (matrix @ matrix)[0, 0].item(), number=1, repeat=REPETITIONS)
    return 2.0 * size**3 / min(seconds)


class ThroughputMeter:
    """Measures tokens per second of training, without validation and samples."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds, self._tokens = 0.0, 0

    def add(self, tokens: int) -> None:
        """Add tokens, and the time since the last call."""
        self._seconds += self._elapsed()
        self._tokens += tokens

    def skip(self) -> None:
        """Leave out the time since the last call."""
        self._elapsed()

    def tokens_per_second(self) -> float:
        """Return the tokens per second since the last call of this method."""
        speed = self._tokens / max(self._seconds, 1e-9)
        self._seconds, self._tokens = 0.0, 0
        return speed

    def _elapsed(self) -> float:
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return passed
