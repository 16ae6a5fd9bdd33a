"""Estimate the memory and time of recording a text.

In: a model, a number of tokens and the options of `record`. Out: an `Estimate`. A short forward pass gives the shapes
of all layers and the time per token, which grows linearly; single attention calls give the time per pair of tokens,
which grows quadratically. Memory: that of the short pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import Causal, attend
from attnscope.errors import SettingError
from attnscope.formatting import format_bytes, format_seconds
from attnscope.matrix import AttentionMatrix
from attnscope.recording.chunks import run_in_chunks
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.recorder import record
from attnscope.recording.trace import Trace

PASS, CALL = 64, 2048  # tokens of the small pass, where the model takes as many, and of the single calls
CPU = torch.device("cpu")
ROW_NUMBERS = 14  # of a summary, for each row or key of a head; counts of keys and rows are the same for all heads


@dataclass(frozen=True)
class Estimate:
    """The estimated memory and time of recording a text."""

    tokens: int
    held: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"recording {self.tokens:,} tokens takes {format_bytes(self.held)} of memory and about "
            f"{format_seconds(self.seconds)}"
        )


def estimate(model: nn.Module, tokens: int, *, batch: int = 1, **options: Any) -> Estimate:
    """Estimate `read` of so many tokens, with its `layers`, `heads`, `dtype`, `keep` and `values`.

    Args:
        model: The model that would read the text.
        tokens: The length of the text.
        batch: The number of texts.
        **options: `layers`, `heads`, `dtype`, `keep` and `values`, as in `read`.

    Returns:
        Time and memory; printing it shows both.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> estimate(model, 20).held  # bytes
    5760
    """
    statistics = options.pop("keep", "matrix") == "statistics"
    options = {name: value for name, value in options.items() if name not in ("spill", "verify")}
    run_small_pass(model, batch, options)  # warm up
    started = time.perf_counter()
    trace = run_small_pass(model, batch, options)
    _synchronize(*_devices(trace))
    seconds = (time.perf_counter() - started) * tokens / _pass_length(model)
    for layer, count in Counter(_layer_shapes(trace)).items():
        seconds += count * _call_seconds(layer, statistics=statistics) * (tokens / CALL) ** 2
    return Estimate(tokens, held_bytes(trace, tokens, statistics=statistics), seconds)


def run_small_pass(model: nn.Module, batch: int, options: dict[str, Any]) -> Trace:
    """A trace of a few arbitrary tokens."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None) or 2
    ids = (torch.arange(_pass_length(model)) % vocabulary).expand(batch, -1)
    with torch.no_grad(), record(model, **options) as trace:
        for _ in run_in_chunks(model, ids, PASS):
            pass
    return trace


def _pass_length(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return min([PASS, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])


def held_bytes(trace: Trace, tokens: int, *, statistics: bool, device: torch.device | None = None) -> int:
    """The memory of a trace of the same layers with so many tokens, on one device or on all."""
    layers = [layer for layer in trace.layers.values() if device is None or _device_of(layer) == device]
    if statistics:
        return sum(4 * layer.shape[0] * layer.shape[1] * ROW_NUMBERS * tokens for layer in layers)
    return sum(layer.nbytes * tokens // layer.shape[2] for layer in layers)


def check_memory(model: nn.Module, ids: Tensor, options: dict[str, Any]) -> None:
    """Raise SettingError if the trace of a long text would not fit into the memory of the devices that hold it."""
    if ids.shape[1] < CALL or options.get("spill") is not None:
        return
    statistics = options.get("keep") == "statistics"
    chosen = {name: value for name, value in options.items() if name in ("layers", "heads", "dtype", "values")}
    trace = run_small_pass(model, ids.shape[0], chosen)
    for device in _devices(trace):
        available = available_bytes(device)
        held = held_bytes(trace, ids.shape[1], statistics=statistics, device=device)
        if available is not None and held > available:
            raise SettingError(
                f"read: a trace of {ids.shape[1]:,} tokens would take {format_bytes(held)} on {device}, and "
                f"{format_bytes(available)} of memory are free; choose layers= or heads=, halve it with "
                "dtype=torch.bfloat16, use keep='statistics', or store it on disk with spill=FOLDER"
            )


class _LayerShape(NamedTuple):
    query: torch.Size
    key: torch.Size
    dtype: torch.dtype
    device: torch.device


def _layer_shapes(trace: Trace) -> list[_LayerShape]:
    calls = [layer.merge_calls() for layer in trace.layers.values() if isinstance(layer, Layer)]
    return [_LayerShape(call.query.shape, call.key.shape, call.query.dtype, call.query.device) for call in calls]


def _devices(trace: Trace) -> list[torch.device]:
    return list(dict.fromkeys(_device_of(layer) for layer in trace.layers.values()))


def _device_of(layer: AnyLayer) -> torch.device:
    return next(iter(layer.tensors())).device


def _synchronize(*devices: torch.device) -> None:
    """Wait for the asynchronous work of these devices."""
    for device in devices:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def _call_seconds(layer: _LayerShape, *, statistics: bool) -> float:
    """The time of one causal attention call over CALL tokens, and of its statistics if they are recorded."""
    options = {"dtype": layer.dtype, "device": layer.device}
    queries, keys = (torch.randn(*shape[:2], CALL, shape[3], **options) for shape in (layer.query, layer.key))
    seconds = _seconds(lambda: attend(queries, keys, keys, mask=Causal()), layer.device)
    if statistics:
        seconds += _seconds(lambda: AttentionMatrix(queries, keys, mask=Causal()).summary(), layer.device)
    return seconds


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    _synchronize(device)
    started = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - started


def available_bytes(device: torch.device = CPU) -> int | None:
    """Memory that a process could still get on a device, where the system reports it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None
