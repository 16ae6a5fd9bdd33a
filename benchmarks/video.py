"""Recording a question about a video of 16 frames: peak memory, compared with the size of dense attention weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from attnscope.bench import Size
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table
from attnscope.recording import record

FRAMES = 16
VIDEO, START, END = 96, 98, 95
TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65536,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
}
VISION: dict[str, Any] = {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 4, "patch_size": 4}


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table."""
    layers, heads = TEXT["num_hidden_layers"], TEXT["num_attention_heads"]
    table = Table(
        title="a question about a video",
        comparison=f"A Qwen2-VL with random parameters in float32, one thread: {layers} layers of {heads} heads in the "
        f"language model, {VISION['depth']} in the image encoder. Record one forward pass over {FRAMES} frames and a "
        "question of two tokens, and draw the map of the last token on all frames. Memory is that above the loaded "
        "model; dense weights are those of the language model alone, computed from their shape.",
        columns=("video tokens", "dense weights", "peak memory"),
    )
    for side in size.choose(small=(4, 8), full=(24, 48)):
        tokens = FRAMES * side * side
        step(f"{tokens:,} video tokens")
        peak = peak_extra_bytes(ask_about_video, FRAMES, side)
        table.add(f"{tokens:,}", f"{dense_bytes(side) / 1e9:.3g} GB", f"{peak / 1e6:,.0f} MB")
    yield table


def dense_bytes(side: int) -> int:
    """The size of the attention weights of the language model alone, for the tokens of the video."""
    return TEXT["num_hidden_layers"] * TEXT["num_attention_heads"] * (FRAMES * side * side) ** 2 * 4


def ask_about_video(frames: int, side: int) -> Callable[[], None]:
    """The function that records a question about frames x side x side tokens, and maps its last token."""
    torch.set_num_threads(1)
    tokens = {"image_token_id": 97, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
    config = AutoConfig.for_model("qwen2_vl", text_config=TEXT, vision_config=VISION, **tokens)
    model = AutoModelForImageTextToText.from_config(config).eval()

    def work(frames: int = frames, side: int = side) -> None:
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

    work(2, 2)
    return work
