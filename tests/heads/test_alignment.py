"""Alignment heads are ranked first, and tokens get the times that their frames were built with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.alignment import align, score_alignment, token_times
from attnscope.recording import Trace, record
from tests.recording.zoo_perception import SOUND_MODELS

DURATIONS = torch.tensor([3, 1, 7, 2, 5, 1, 4, 6, 2, 9])
TOKENS, FRAMES = len(DURATIONS), int(DURATIONS.sum())
OWNER = torch.repeat_interleave(torch.arange(TOKENS), DURATIONS)


class Listener(nn.Module):
    """A decoder layer whose second head attends to the frames of each token; the others do not follow the sound."""

    def __init__(self) -> None:
        super().__init__()
        self.cross_attn = CrossAttention()

    def forward(self, tokens: Tensor, sound: Tensor) -> Tensor:
        return self.cross_attn(tokens, sound)


class CrossAttention(nn.Module):
    """Attention of given queries on given keys, (batch, heads, position, dim)."""

    def forward(self, tokens: Tensor, sound: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(tokens, sound, sound, scale=1.0)


def listened(noise: float) -> Trace:
    """A trace of four heads: uniform, aligned, all on the first frame, and from right to left."""
    generator = torch.Generator().manual_seed(3)
    token = torch.eye(TOKENS)
    uniform = torch.zeros(TOKENS, TOKENS), torch.zeros(FRAMES, TOKENS)
    sink_key = torch.zeros(FRAMES, TOKENS)
    sink_key[0] = 9.0
    frames = token[OWNER]
    aligned = 6 * token, frames + noise * torch.randn(FRAMES, TOKENS, generator=generator) / 6
    heads = [uniform, aligned, (torch.ones(TOKENS, TOKENS), sink_key), (6 * token.flip(0), frames)]
    query, key = (torch.stack([head[side] for head in heads])[None] for side in (0, 1))
    model = Listener()
    with torch.no_grad(), record(model) as trace:
        model(query, key)
    return trace


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_the_aligned_head_is_first_and_gives_the_times(noise: float) -> None:
    trace = listened(noise)
    table = score_alignment(trace)
    assert table.heads[0] == 1
    assert table["alignment"][0] > 2 * table["alignment"][1]
    times = token_times(trace, [(table.layers[0], 1)], seconds=0.02)
    right = torch.cat([torch.zeros(1), DURATIONS.cumsum(0)]) * 0.02
    assert (times[:, 0] - right[:-1]).abs().max() <= 0.02 + 1e-9  # within one frame
    assert (times[:, 1] - right[1:]).abs().max() <= 0.02 + 1e-9


def test_padding_after_the_recording_is_left_out() -> None:
    first, end = 4, int(DURATIONS[:4].sum())  # the recording ends after four tokens
    scores = {frames: score_alignment(listened(0.0), tokens=slice(first), frames=frames) for frames in (None, end)}
    weights = listened(0.0).layer("cross_attn").matrix().batch(0)[:, :first, :end]
    table = scores[end]
    expected = align(weights).score[table.heads[0]]
    assert table["alignment"][0].item() == pytest.approx(expected.item())
    assert (scores[None]["alignment"] != table["alignment"]).any()


def test_the_alignment_is_the_best_of_all() -> None:
    weights = torch.rand(3, 4, 7, generator=torch.Generator().manual_seed(0))
    found = align(weights)
    for head, one in enumerate(weights):
        best = max(
            (
                sum(
                    float(one[at, start:stop].sum())
                    for at, (start, stop) in enumerate(zip(cuts, (*cuts[1:], 7), strict=True))
                ),
                cuts,
            )
            for cuts in ((0, a, b, c) for a in range(1, 5) for b in range(a + 1, 6) for c in range(b + 1, 7))
        )
        assert found.score[head].item() == pytest.approx(best[0] / 4)
        assert tuple(found.starts[head].tolist()) == best[1]


def test_uniform_weights_score_one_by_tokens() -> None:
    assert align(torch.full((5, 20), 1 / 20)).score.item() == pytest.approx(1 / 5)


def test_whisper_is_scored_in_all_cross_attention_heads() -> None:
    whisper = next(one for one in SOUND_MODELS if one.name == "Whisper")
    model = whisper.build()
    with torch.no_grad(), record(model) as trace:
        model(**whisper.inputs(model))
    table = score_alignment(trace, tokens=slice(1, 6))
    assert len(table) == 2 * 4
    assert token_times(trace, [(table.layers[0], table.heads[0])], tokens=slice(1, 6)).shape == (5, 2)


def test_what_cannot_be_aligned_is_refused() -> None:
    with pytest.raises(ShapeError, match="as many frames"):
        align(torch.ones(5, 4))
    with pytest.raises(SettingError, match="no cross-attention"):
        score_alignment(Trace.from_attentions([torch.eye(4)[None, None]]))
    with pytest.raises(SettingError, match="no cross-attention head 9"):
        token_times(listened(0.0), [("cross_attn", 9)])
