"""Recording a video of 16 frames in a vision-language model takes O(n) memory."""

from __future__ import annotations

import pytest

from attnscope.bench.memory import peak_extra_bytes
from benchmarks.video import FRAMES, ask_about_video, dense_bytes


@pytest.mark.slow
def test_a_video_of_16_frames_takes_memory_in_proportion_to_its_length() -> None:
    peaks = [peak_extra_bytes(ask_about_video, FRAMES, side) for side in (12, 24)]
    assert peaks[1] < 6 * peaks[0]  # four times as many tokens
    assert peaks[1] < dense_bytes(24) / 10
