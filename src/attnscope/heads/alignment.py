"""Alignment heads: cross-attention that follows a recording from left to right, and the times of tokens from it.

A monotonic alignment gives each frame to one token, in order, and at least one frame to each token. The best one, by
dynamic programming (as dynamic time warping does), is found for all heads of a layer at once.
In: a trace of an encoder-decoder model, such as Whisper. Out: a table of heads, and times. Does not know: audio.
Memory: O(tokens x frames) per head of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.table import HeadTable
from attnscope.recording import Trace
from attnscope.recording.layers.statistics import StatisticsLayer

WHISPER_SECONDS = 0.02
"""Seconds per encoder frame of Whisper."""


class Alignment(NamedTuple):
    """The best monotonic alignment: its score, (...,), and the first frame of each token, (..., tokens)."""

    score: Tensor
    starts: Tensor


def align(weights: Tensor) -> Alignment:
    """The monotonic alignment with the largest weight.

    Args:
        weights: (..., tokens, frames), with at least as many frames as tokens.

    Returns:
        The score is the mean over tokens of the weight on their own frames: 1 for a head that attends to exactly these,
        1 / tokens for uniform weights.

    Raises:
        ShapeError: There are fewer frames than tokens.

    >>> align(torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]))
    Alignment(score=tensor(1.), starts=tensor([0, 2]))
    """
    *leading, tokens, frames = weights.shape
    if not tokens or frames < tokens:
        raise ShapeError(f"align: expected at least one token, and as many frames, got {tuple(weights.shape)}")
    gains = weights.double().reshape(-1, tokens, frames)
    best = gains.new_full((len(gains), tokens), -torch.inf)
    best[:, 0] = gains[:, 0, 0]
    has_advanced = torch.zeros(frames, len(gains), tokens, dtype=torch.bool, device=weights.device)
    for frame in range(1, frames):
        before = torch.nn.functional.pad(best[:, :-1], (1, 0), value=-torch.inf)
        has_advanced[frame] = before > best
        best = torch.maximum(best, before) + gains[:, :, frame]
    starts = torch.zeros(len(gains), tokens, dtype=torch.long, device=weights.device)
    token = torch.full((len(gains),), tokens - 1, device=weights.device)
    for frame in range(frames - 1, 0, -1):
        moved = has_advanced[frame].gather(1, token[:, None])[:, 0]
        starts[moved, token[moved]] = frame
        token = token - moved.long()
    score = (best[:, -1] / tokens).to(weights.dtype)
    return Alignment(score.reshape(leading), starts.reshape(*leading, tokens))


def score_alignment(
    trace: Trace, *, tokens: slice = slice(None), frames: int | None = None, batch: int = 0
) -> HeadTable:
    """Rank all cross-attention heads by how well they align tokens with frames.

    Args:
        trace: A trace of an encoder-decoder model.
        tokens: The tokens to align; leave out special tokens at the beginning and end, which have no time.
        frames: How many frames the recording has; those after it are padding. All of them by default.
        batch: The index in the batch.

    Returns:
        All heads of the cross-attention layers with the column `alignment`, the score of `align`, the best first.

    Raises:
        SettingError: The trace has no cross-attention, or statistics only.
    """
    layers: list[str] = []
    heads: list[int] = []
    scores: list[Tensor] = []
    for name, layer in _cross_layers(trace).items():
        scores.append(align(layer.matrix().batch(batch)[:, tokens, :frames]).score.double().cpu())
        layers += [name] * layer.shape[1]
        heads += layer.heads
    return HeadTable(tuple(layers), tuple(heads), {"alignment": torch.cat(scores)}).top("alignment")


def token_times(
    trace: Trace,
    heads: Sequence[tuple[str, int]],
    *,
    seconds: float = WHISPER_SECONDS,
    tokens: slice = slice(None),
    frames: int | None = None,
    batch: int = 0,
) -> Tensor:
    """The start and end of each token, from the mean weights of alignment heads.

    Args:
        trace: A trace of an encoder-decoder model.
        heads: (layer, head) of the heads, such as the best of `score_alignment`.
        seconds: The seconds per frame of the encoder.
        tokens: The tokens to align.
        frames: How many frames the recording has; those after it are padding. All of them by default.
        batch: The index in the batch.

    Returns:
        (tokens, 2), in seconds. Each token ends where the next one starts.

    Raises:
        SettingError: A head does not exist.
    """
    known = _cross_layers(trace)
    chosen = []
    for name, head in heads:
        if name not in known or head not in known[name].heads:
            raise SettingError(f"token_times: no cross-attention head {head} in layer {name!r}")
        matrix = known[name].matrix().batch(batch).head(list(known[name].heads).index(head))
        chosen.append(matrix[tokens, :frames])
    if not chosen:
        raise SettingError("token_times: expected at least one head")
    weights = torch.stack(chosen).mean(0)
    starts = align(weights).starts
    ends = torch.cat([starts[1:], starts.new_tensor([weights.shape[-1]])])
    return torch.stack([starts, ends], -1) * seconds


def _cross_layers(trace: Trace) -> dict:
    layers = {name: layer for name, layer in trace.layers.items() if getattr(layer, "cross", False)}
    if not layers:
        raise SettingError("alignment: this trace has no cross-attention, which aligns tokens with frames")
    if any(isinstance(layer, StatisticsLayer) for layer in layers.values()):
        raise SettingError("alignment: this trace has statistics only; record it with keep='matrix'")
    return layers
