"""Recording a video of 16 frames in a vision-language model takes O(n) memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from attnscope.bench.memory import peak_extra_bytes
from attnscope.recording import record

VIDEO, START, END = 96, 98, 95
TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
}
VISION: dict[str, Any] = {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 4, "patch_size": 4}


def ask_about_video(frames: int, side: int) -> Callable[[], int]:
    """Record a question about a video of frames x side x side tokens, and map its last word; returns dense bytes."""
    tokens = {"image_token_id": 97, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
    config = AutoConfig.for_model("qwen2_vl", text_config=TEXT, vision_config=VISION, **tokens)
    model = AutoModelForImageTextToText.from_config(config).eval()

    def work(frames: int = frames, side: int = side) -> int:
        ids = torch.tensor([[1, START, *[VIDEO] * (frames * side * side), END, 5, 6]])
        inputs = {
            "input_ids": ids,
            "pixel_values_videos": torch.randn(frames * side * side * 4, 2 * 3 * 4 * 4),
            "video_grid_thw": torch.tensor([[frames, 2 * side, 2 * side]]),
            "mm_token_type_ids": 2 * (ids == VIDEO).long(),
        }
        with torch.no_grad(), record(model) as trace:
            model(**inputs, logits_to_keep=1)
        picture = trace.on_image()
        found = picture.attends_to(picture.layers[-1], ids.shape[1] - 1)
        assert found.grid == (frames, side, side)
        return trace.dense_nbytes

    work(2, 2)
    return work


@pytest.mark.slow
def test_a_video_of_16_frames_takes_memory_in_proportion_to_its_length() -> None:
    peaks = [peak_extra_bytes(ask_about_video, 16, side) for side in (12, 24)]
    dense = 2 * 8 * (16 * 24 * 24) ** 2 * 4  # bytes of the weights of the language model alone
    assert peaks[1] < 6 * peaks[0]  # four times as many tokens
    assert peaks[1] < dense / 10
